"""Pages: arithmetic of the layout, counts and places. No page is lost, shared or outside."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from harness.elastic.device_layout import DeviceLayout, layer_weight_bytes, page_bytes
from harness.elastic.kv_region import KvRegion
from harness.elastic.page_pool import PagePool
from harness.elastic.page_tables import KvCopy, PageTables, merged
from harness.errors import RunError, UsageError
from harness.request import Request
from tests.accounts import audit
from tests.elastic import spec
from tests.examples import num_examples

TINY = spec()  # 4 layers
BLOCK_TOKENS = 16


def layout(num_blocks: int = 30, page_layers: int | None = 1, **changes: object) -> DeviceLayout:
    model = replace(TINY, **changes)
    weights = sum(layer_weight_bytes(model, layer) for layer in range(model.num_layers))
    block = page_bytes(model, BLOCK_TOKENS, model.num_layers)
    return DeviceLayout(model, weights + num_blocks * block, BLOCK_TOKENS, page_layers)


@pytest.mark.parametrize("tied", [True, False])
def test_layers_with_their_ends_are_the_whole_model(tied: bool) -> None:
    model = replace(TINY, tie_embeddings=tied)
    total = sum(layer_weight_bytes(model, layer) for layer in range(model.num_layers))
    twice = model.vocab_size * model.hidden_size * model.dtype_bytes if tied else 0
    assert total == model.weight_bytes + twice  # tied: both ends have the table


def test_weights_lie_behind_the_pages_without_gaps() -> None:
    made = layout()
    ends = [at.stop for at in made.layer_at]
    assert [at.start for at in made.layer_at[1:]] == ends[:-1]
    assert ends[-1] <= made.memory_bytes
    (base,) = made.pages(())
    assert base.start == 1  # page 0 is padding
    assert base.stop * made.page_bytes <= made.layer_at[0].start


@given(given_up=st.sets(st.integers(0, 3)), page_layers=st.sampled_from([1, 2, 4]))
def test_pages_are_where_no_weights_are(given_up: set[int], page_layers: int) -> None:
    made = layout(page_layers=page_layers)
    pages = [page for ids in made.pages(given_up) for page in ids]
    assert len(pages) == len(set(pages)) == made.num_pages(given_up)
    for layer, at in enumerate(made.layer_at):
        if layer not in given_up:
            for page in pages:
                start = page * made.page_bytes
                assert start + made.page_bytes <= at.start or start >= at.stop
    freed = sum(len(made.layer_at[layer]) for layer in given_up)
    gained = (made.num_pages(given_up) - made.num_pages()) * made.page_bytes
    assert freed - 2 * made.page_bytes * (len(given_up) + 1) < gained <= freed + made.page_bytes


@pytest.mark.parametrize(
    ("layers", "page_layers", "expected"),
    [(range(4), None, (0,)), (range(2), 2, (0,)), (range(2, 4), 2, (1,)), (range(1, 3), 1, (1, 2))],
)
def test_page_groups(layers: range, page_layers: int | None, expected: tuple[int, ...]) -> None:
    assert layout(page_layers=page_layers).groups(layers) == expected


@pytest.mark.parametrize("layers", [range(1, 4), range(3), range(4, 4), range(5), range(-1, 2)])
def test_layers_that_cut_a_page_are_refused(layers: range) -> None:
    with pytest.raises(UsageError, match="no pages of 2 layers of the 4 of model tiny-llama"):
        layout(page_layers=2).groups(layers)


def test_a_model_that_leaves_no_kv_is_refused() -> None:
    with pytest.raises(UsageError, match="leaves no memory for KV"):
        layout(num_blocks=0)


def test_neighbouring_spans_are_one() -> None:
    spans = [(0, 100, 8), (8, 108, 8), (16, 200, 8), (40, 208, 8)]
    from harness.elastic.fabric import Span

    found = merged([Span(*span) for span in spans])
    assert found == [Span(0, 100, 16), Span(16, 200, 8), Span(40, 208, 8)]


class Pages(RuleBasedStateMachine):
    """Requests come, grow, move between two devices by page group, and go; layers are dropped and
    come back; memory is lent. Counts and places agree throughout."""

    def __init__(self) -> None:
        super().__init__()
        made = layout(num_blocks=10, page_layers=1)
        self.regions = [KvRegion(f"device {i}", made, places_matter=True) for i in range(2)]
        self.requests: dict[int, Request] = {}
        self.groups: dict[tuple[int, int], tuple[int, ...]] = {}  # (request, device) -> held
        self.tokens: dict[int, int] = {}
        self.dropped = [set[int](), set[int]()]
        self.lent: list[list[range]] = [[], []]
        self.made = 0

    @rule(device=st.integers(0, 1), tokens=st.integers(1, 60), group=st.integers(0, 3))
    def come(self, device: int, tokens: int, group: int) -> None:
        request = Request(self.made, 0.0, "m", tokens, 100)
        groups = tuple(range(group, 4))
        free = self.regions[device].pool.free_pages
        fits = self.regions[device].pool.grow(request, tokens, groups)
        assert fits == (-(-tokens // BLOCK_TOKENS) * len(groups) <= free)
        if fits:
            self.requests[self.made], self.tokens[self.made] = request, tokens
            self.groups[self.made, device] = groups
        self.made += 1

    @precondition(lambda self: self.requests)
    @rule(pick=st.integers(0, 99), more=st.integers(1, 40))
    def grow(self, pick: int, more: int) -> None:
        request = self.pick(pick)
        holders = [d for (r, d) in self.groups if r == request.request_id]
        tokens = self.tokens[request.request_id] + more
        pools = [self.regions[d].pool for d in holders]
        if all(pool.can_grow(request, tokens) >= 0 for pool in pools):
            assert all(pool.grow(request, tokens) for pool in pools)
            self.tokens[request.request_id] = tokens

    @precondition(lambda self: self.requests)
    @rule(pick=st.integers(0, 99), device=st.integers(0, 1), count=st.integers(1, 4))
    def move(self, pick: int, device: int, count: int) -> None:
        request = self.pick(pick)
        mine = self.groups.get((request.request_id, device))
        if mine is None:
            return
        going = mine[:count]
        source, target = self.regions[device].pool, self.regions[1 - device].pool
        blocks = source.held[request.request_id]
        if target.accept(request, blocks, going):
            source.give_up(request, going)
            there = self.groups.get((request.request_id, 1 - device), ())
            self.groups[request.request_id, 1 - device] = tuple(sorted((*there, *going)))
            if rest := mine[count:]:
                self.groups[request.request_id, device] = rest
            else:
                del self.groups[request.request_id, device]

    @precondition(lambda self: self.requests)
    @rule(pick=st.integers(0, 99))
    def go(self, pick: int) -> None:
        request = self.pick(pick)
        for device, region in enumerate(self.regions):
            region.pool.release(request)
            self.groups.pop((request.request_id, device), None)
        del self.requests[request.request_id], self.tokens[request.request_id]

    @rule(device=st.integers(0, 1), layer=st.integers(0, 3))
    def drop(self, device: int, layer: int) -> None:
        if layer not in self.dropped[device]:
            self.regions[device].give([layer])
            self.dropped[device].add(layer)

    @rule(device=st.integers(0, 1), layer=st.integers(0, 3))
    def restore(self, device: int, layer: int) -> None:
        if layer in self.dropped[device]:
            try:
                self.regions[device].take_back([layer])
            except RunError:
                return
            self.dropped[device].discard(layer)
            self.compact(device)

    @rule(device=st.integers(0, 1), pages=st.integers(1, 30))
    def lend(self, device: int, pages: int) -> None:
        try:
            lent = self.regions[device].lend(pages)
        except RunError:
            return
        self.lent[device].append(lent)
        self.compact(device)

    @precondition(lambda self: any(self.lent))
    @rule(pick=st.integers(0, 99))
    def take_home(self, pick: int) -> None:
        device = 0 if self.lent[0] else 1
        lent = self.lent[device].pop(pick % len(self.lent[device]))
        self.regions[device].take_home(lent)

    def compact(self, device: int) -> None:
        region = self.regions[device]
        tables, size = region.tables, region._layout.page_bytes
        assert tables is not None
        for span in tables.compact(tables.outside(), size):
            assert span.source_at // size not in tables._pages
            assert span.target_at // size in tables._pages
        assert not tables.outside()

    def pick(self, number: int) -> Request:
        return list(self.requests.values())[number % len(self.requests)]

    @invariant()
    def counts_and_places_agree(self) -> None:
        for device, region in enumerate(self.regions):
            audit(region.pool)
            tables = region.tables
            assert tables is not None
            mine = [r for r in self.requests.values() if (r.request_id, device) in self.groups]
            tables.reconcile(mine)
            audit(tables)
            lent = {p for at in self.lent[device] for p in range(at.start, at.stop)}
            for request in mine:
                pages = tables.ids[request.request_id]
                assert tuple(sorted(pages)) == self.groups[request.request_id, device]
                assert {len(ids) for ids in pages.values()} == {
                    -(-self.tokens[request.request_id] // BLOCK_TOKENS)
                }
                for ids in pages.values():
                    for page in ids:
                        start = page * region._layout.page_bytes
                        assert not lent & set(range(start, start + region._layout.page_bytes, 64))
                        for layer, at in enumerate(region._layout.layer_at):
                            if layer not in self.dropped[device]:
                                clear = start + region._layout.page_bytes <= at.start
                                assert clear or start >= at.stop


TestPages = Pages.TestCase
TestPages.settings = settings(max_examples=num_examples(40), stateful_step_count=25)


def test_pages_that_moved_away_are_taken_back_where_they_are_needed() -> None:
    """By the counts they are free at once; their request may run again only much later."""
    pool = PagePool(8, 16, 4)
    tables = PageTables(pool, [range(8)], 0)
    first, second = Request(0, 0.0, "m", 20, 40), Request(1, 0.0, "m", 40, 9)
    assert pool.grow(first, 32)
    tables.reconcile([first])
    pool.give_up(first, (2, 3))
    assert pool.accept(second, 2, (0, 1))
    tables.reconcile([second])
    assert set(tables.ids[0]) == {0, 1}
    audit(tables)


def test_the_first_to_need_a_block_gets_the_lowest_page_and_a_prompts_stay_together() -> None:
    pool = PagePool(20, 4, 2)
    tables = PageTables(pool, [range(20)], 0)
    far, near = Request(0, 0.0, "m", 8, 9), Request(1, 0.0, "m", 8, 9)
    for request in (far, near):
        assert pool.grow(request, 8)
    tables.reconcile([far, near])
    assert tables.ids == {0: {0: [0, 1], 1: [2, 3]}, 1: {0: [4, 5], 1: [6, 7]}}
    for request, computed in ((far, 8), (near, 11)):
        request.computed_tokens, request.generated_tokens = computed, computed - 7
        assert pool.grow(request, 16)
    tables.reconcile([far, near])
    assert [tables.ids[r.request_id][0][2] for r in (far, near)] == [8, 10]
    assert [tables.ids[r.request_id][0][3] for r in (far, near)] == [14, 12]


def test_what_a_decode_has_computed_arrives_in_one_piece() -> None:
    here, there = PagePool(20, 4, 2), PagePool(20, 4, 2)
    request = Request(0, 0.0, "m", 16, 9)
    tables = [PageTables(pool, [range(20)], 0) for pool in (here, there)]
    assert here.grow(request, 16)
    tables[0].reconcile([request])
    request.computed_tokens = request.prompt_tokens
    request.generated_tokens = 1
    assert request.decoding
    assert there.grow(request, 16)
    (span,) = tables[0].spans([KvCopy(request, request, range(4))], (0, 1), tables[1], 100)
    assert span.num_bytes == 2 * 4 * 100
