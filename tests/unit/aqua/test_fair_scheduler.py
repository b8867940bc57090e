"""The fair scheduler: section 7's words as examples, its invariants, and a brute-force oracle."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from harness.device.block_pool import BlockPool
from harness.request import Request
from systems.aqua import fair_scheduler
from systems.aqua.fair_scheduler import Since, decode_slots, iteration
from systems.aqua.prompt import Limits, Prompt, Slice
from systems.aqua.service_order import ServiceOrder
from systems.serving import iteration as vllm
from tests.examples import examples
from tests.unit.aqua.turns import Asked, Turns, changed

LIMITS = Limits(
    batch_tokens=8, slice_iterations=2, num_blocks=12, block_tokens=4, max_prompts=16
)  # fmt: skip


def prefill(name: int, prompt: int, computed: int = 0, output: int = 4) -> Prompt:
    return Prompt(name, name, prompt, computed, 0, output)


def decode(name: int, context: int, generated: int, output: int = 4) -> Prompt:
    return Prompt(name, name, context + 1, context, generated, output)


def choose(prompts: Sequence[Prompt], limits: Limits, *, fcfs: bool = False) -> Slice:
    return fair_scheduler.choose(ServiceOrder(limits, prompts), fcfs=fcfs)


def fair(prompts: Sequence[Prompt], limits: Limits) -> Slice:
    return fair_scheduler.fair(ServiceOrder(limits, prompts))


def due(since: Since, chosen: Slice, prompts: Sequence[Prompt], limits: Limits) -> bool:
    return fair_scheduler.due(since, chosen, ServiceOrder(limits, prompts))


def test_prefills_with_the_fewest_tokens_computed_come_first() -> None:
    crowd = [decode(i, 9, 1) for i in range(10, 14)]  # 3 blocks each: the device is full
    found = fair([prefill(0, 20, 8), prefill(1, 20, 2), *crowd], LIMITS)
    assert found.prefills == (1,)  # p is 4 tokens, and 1 lacks more


def test_tokens_of_a_cached_prefix_are_no_service() -> None:
    """Else who shares a prefix would wait for all who do not."""
    crowd = [decode(i, 9, 1) for i in range(10, 14)]
    sharing = changed(prefill(0, 20, 16), cached_tokens=16)
    assert fair([sharing, prefill(1, 20, 2), *crowd], LIMITS).prefills == (0,)


def test_decodes_with_the_fewest_tokens_generated_come_next() -> None:
    crowd = [decode(i, 9, 10 - i) for i in range(6)]  # four of them fit
    assert fair(crowd, LIMITS) == Slice((), (5, 4, 3, 2), fair=True)


def test_d_is_as_large_as_memory_allows() -> None:
    crowd = [decode(i, 9, 1) for i in range(6)]
    assert decode_slots(ServiceOrder(LIMITS, crowd).decodes, LIMITS) == 4
    few = replace(LIMITS, batch_tokens=3)
    assert decode_slots(ServiceOrder(few, crowd).decodes, few) == 3


def test_slots_that_decodes_leave_go_to_prefills() -> None:
    tight = replace(LIMITS, slice_iterations=1)
    crowd = [decode(i, 11, 1) for i in range(10, 14)]  # 3 blocks each: d is 4, p is 4 tokens
    found = fair([prefill(i, 2) for i in range(5)] + crowd, tight)
    assert found.decodes == (10, 11, 12)  # beside a block for each of two prompts, which fill p
    assert found.prefills == (0, 1, 2)  # the slot left is the third's, with the last block
    found = fair([prefill(i, 2) for i in range(5)] + crowd[:1], tight)
    assert found.prefills == (0, 1, 2, 3)  # d is 1: p is 7 tokens


def test_a_prompt_without_room_does_not_keep_the_other_kind_off() -> None:
    crowd = [decode(i, 9, 1) for i in range(10, 14)]  # 3 blocks each
    long = [prefill(0, 28), prefill(1, 28)]  # in a slice 4 blocks each of 16 tokens
    tight = replace(LIMITS, num_blocks=7)
    assert fair([*long, *crowd], tight) == Slice((0,), (10,), fair=True)
    huge = [decode(9, 26, 0 + 1), decode(10, 9, 2)]  # 7 blocks beside 4: not on the device
    assert fair([prefill(0, 3), prefill(1, 3), *huge], replace(tight, num_blocks=8)) == Slice(
        (0, 1), (), fair=True
    )


def test_without_contention_the_order_is_that_of_arrival() -> None:
    asked = [prefill(0, 6, 4), prefill(1, 6)]
    assert choose(asked, LIMITS) == Slice((0, 1), (), fair=False)
    assert fair(asked, LIMITS).prefills == (1, 0)


def test_in_dram_nobody_is_preempted() -> None:
    on_device = [changed(decode(i, 9, 9), resident=True) for i in (2, 3, 4, 5)]
    asked = [decode(0, 9, 0 + 1), decode(1, 9, 1), *on_device]
    assert choose(asked, LIMITS, fcfs=True) == Slice((), (2, 3, 4, 5), fair=False)
    assert choose(asked, LIMITS).members == (0, 1, 2, 3)


def test_a_slice_ends_after_k_iterations_or_with_a_request() -> None:
    crowd = [decode(i, 9, 1) for i in range(6)]
    chosen = choose(crowd, LIMITS)
    idle = Since(1, completed=False, prefilled=False, arrived=False)
    assert not due(idle, chosen, crowd, LIMITS)
    assert due(replace(idle, iterations=2), chosen, crowd, LIMITS)
    assert due(replace(idle, completed=True), chosen, crowd, LIMITS)
    assert not due(replace(idle, arrived=True), chosen, [*crowd, prefill(9, 4)], LIMITS)
    assert not due(replace(idle, prefilled=True), chosen, crowd, LIMITS)
    assert due(replace(idle, prefilled=True), chosen, [*crowd, prefill(9, 4)], LIMITS)
    few = crowd[:2]
    chosen = choose(few, LIMITS)
    assert due(replace(idle, arrived=True), chosen, [*few, prefill(9, 4)], LIMITS)


def test_a_batch_gives_each_decode_a_token_and_prefills_the_rest() -> None:
    prompts = {p.request_id: p for p in (decode(0, 9, 1), prefill(1, 20), prefill(2, 5, 4))}
    chosen = Slice((2, 1), (0,), fair=True)
    assert iteration(chosen, prompts, 8) == [(0, 1), (2, 1), (1, 6)]


def test_figure_6_d_starts_before_a_ends() -> None:
    """Five prompts, three fit. FCFS serves D after one of A, B and C has ended; CFS before."""
    limits = Limits(
        batch_tokens=8, slice_iterations=2, num_blocks=3, block_tokens=64, max_prompts=16
    )
    asked = [Asked(0, 4, 12), Asked(0, 4, 12), Asked(2, 4, 12), Asked(2, 4, 12), Asked(6, 4, 12)]

    def started(turns: Turns, name: int) -> int:
        return next(i for i, batch in enumerate(turns.batches) if name in batch)

    def ended(turns: Turns, name: int) -> int:
        return max(i for i, batch in enumerate(turns.batches) if name in batch)

    cfs, fcfs = Turns(asked, limits).run(), Turns(asked, limits, fcfs=True).run()
    assert started(fcfs, 3) > ended(fcfs, 0)
    assert started(cfs, 3) < ended(cfs, 0)
    assert started(cfs, 4) < min(ended(cfs, name) for name in range(4))
    assert max(len(members) for members in cfs.members) == 3
    assert fcfs.pages == 0 < cfs.pages


prompts = st.builds(
    lambda known, computed, generated, remaining: (known, computed, generated, remaining),
    st.integers(1, 24), st.integers(0, 23), st.integers(0, 6), st.integers(1, 6),
).filter(lambda each: each[1] < each[0])  # fmt: skip
small_limits = st.builds(
    Limits,
    batch_tokens=st.integers(1, 12), slice_iterations=st.integers(1, 4),
    num_blocks=st.integers(8, 16), block_tokens=st.just(4), max_prompts=st.integers(1, 6),
)  # fmt: skip


def _oracle(crowd: list[Prompt], limits: Limits) -> Slice:
    """Section 7 by trying: of all (prefills in p, decodes, prefills in what is left of d) the
    first that no larger number in an earlier place beats."""
    prefills = sorted(
        (p for p in crowd if not p.decoding), key=lambda p: (p.computed_tokens, p.arrival)
    )
    decodes = sorted(
        (p for p in crowd if p.decoding), key=lambda p: (p.generated_tokens, p.arrival)
    )

    def fits(*lists: list[Prompt]) -> bool:
        every = [p for each in lists for p in each]
        blocks = sum(limits.reserved_blocks(p) for p in every)
        return blocks <= limits.num_blocks and len(every) <= limits.max_prompts

    def useful(some: list[Prompt], tokens: int) -> bool:
        """Each of them gets a token."""
        return all(sum(p.lacking_tokens for p in some[:i]) < tokens for i in range(len(some)))

    d = max(n for n in range(len(decodes) + 1) if n <= limits.batch_tokens and fits(decodes[:n]))
    p_tokens = limits.batch_tokens - d
    best = (0, 0, 0)
    for a, n, c in product(*(range(len(x) + 1) for x in (prefills, decodes, prefills))):
        if a + c > len(prefills) or n > d:
            continue
        first, some, more = prefills[:a], decodes[:n], prefills[a : a + c]
        whole = a == len(prefills) or not useful(prefills[: a + 1], p_tokens)
        if c and not whole:
            continue  # memory ended the filling of p
        left = limits.batch_tokens - n - sum(p.lacking_tokens for p in first)
        if fits(first, some, more) and useful(first, p_tokens) and useful(more, left):
            best = max(best, (a, n, c))
    a, n, c = best
    return Slice(
        tuple(p.request_id for p in prefills[: a + c]),
        tuple(p.request_id for p in decodes[:n]),
        fair=True,
    )


@examples(400)
@given(st.lists(prompts, min_size=1, max_size=7), small_limits)
def test_the_slice_is_what_section_7_says_by_brute_force(
    drawn: list[tuple[int, int, int, int]], limits: Limits
) -> None:
    crowd = [Prompt(i, i, *each) for i, each in enumerate(drawn)]
    assert fair(crowd, limits) == _oracle(crowd, limits)


asked_lists = st.lists(
    st.builds(Asked, st.integers(0, 30), st.integers(1, 30), st.integers(1, 12)),
    min_size=1, max_size=14,
).map(lambda drawn: sorted(drawn, key=lambda each: each.iteration))  # fmt: skip
run_limits = st.builds(
    Limits,
    batch_tokens=st.integers(1, 20), slice_iterations=st.integers(1, 6),
    num_blocks=st.integers(11, 30), block_tokens=st.just(4), max_prompts=st.integers(1, 8),
)  # fmt: skip


@examples(200)
@given(asked_lists, run_limits, st.booleans())
def test_nobody_starves_is_lost_or_doubled_and_batches_fit(
    asked: list[Asked], limits: Limits, fcfs: bool
) -> None:
    turns = Turns(asked, limits, fcfs=fcfs).run()
    assert sorted(turns.finished) == list(range(len(asked)))
    for i, each in enumerate(asked):  # nothing is computed twice
        computed = sum(batch.get(i, 0) for batch in turns.batches)
        assert computed == each.prompt_tokens + each.output_tokens - 1


@examples(200)
@given(asked_lists)
def test_without_contention_the_batches_are_vllms(asked: list[Asked]) -> None:
    """Iteration by iteration those of our vLLM, and so (tests/integration) of vLLM's own."""
    limits = Limits(
        batch_tokens=16, slice_iterations=5, num_blocks=400, block_tokens=4, max_prompts=32
    )
    turns = Turns(asked, limits).run()
    assert not ServiceOrder(limits, turns.live.values()).contended
    assert turns.batches == _vllm(asked, limits)
    assert turns.pages == 0


def _vllm(asked: list[Asked], limits: Limits) -> list[dict[int, int]]:
    kv = BlockPool(limits.num_blocks, limits.block_tokens)
    theirs = vllm.Limits(
        max_num_seqs=limits.max_prompts, max_num_batched_tokens=limits.batch_tokens,
        enable_chunked_prefill=True, scheduler_reserve_full_isl=True,
    )  # fmt: skip
    running: list[Request] = []
    waiting: deque[Request] = deque()
    steps: list[dict[int, int]] = []
    for at in range(20_000):
        waiting += [
            Request(i, float(at), "m", each.prompt_tokens, each.output_tokens)
            for i, each in enumerate(asked)
            if each.iteration == at
        ]
        batch = vllm.schedule_iteration(running, waiting, kv, theirs, kv.release)
        for request, tokens in [*batch.chunks, *((each, 1) for each in batch.decodes)]:
            request.computed_tokens += tokens
            request.generated_tokens += request.computed_tokens == request.known_tokens
        if batch.requests:
            chunks = {request.request_id: tokens for request, tokens in batch.chunks}
            steps.append(chunks | {request.request_id: 1 for request in batch.decodes})
        running = [r for r in running if not r.finished]
        if at > 30 and not running and not waiting:
            break
    return steps
