"""Block ids follow the pool's counts: none lost, none shared, tokens stay where they are."""

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.device.block_pool import BlockPool
from harness.engine.block_tables import FIRST_BLOCK, BlockTables
from harness.request import Request
from tests.accounts import audit

steps = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(["grow", "shrink", "release"]), st.integers(1, 40))
)


@settings(derandomize=True, deadline=None)
@given(steps=steps)
def test_ids_follow_the_counts(steps: list[tuple[int, str, int]]) -> None:
    pool = BlockPool(12, 4)
    tables = BlockTables(pool)
    requests = [Request(i, 0.0, "m", 10, 10) for i in range(5)]
    for index, action, tokens in steps:
        before = {request_id: list(ids) for request_id, ids in tables.ids.items()}
        request = requests[index]
        if action == "release":
            pool.release(request)
        elif action == "grow":
            pool.grow(request, tokens)
        elif index in pool.held:
            pool.shrink_to_computed([(request, pool.blocks_for(tokens))])
        tables.reconcile(requests)
        audit(tables)
        assert {i: len(ids) for i, ids in tables.ids.items() if ids} == pool.held
        for request_id, ids in before.items():
            kept = min(len(ids), pool.held.get(request_id, 0))
            assert tables.ids.get(request_id, [])[:kept] == ids[:kept]


def test_the_first_to_need_a_block_gets_the_lowest() -> None:
    pool = BlockPool(10, 4)
    tables = BlockTables(pool)
    far, near = Request(0, 0.0, "m", 4, 9), Request(1, 0.0, "m", 4, 9)
    for request, computed in ((far, 4), (near, 7)):
        assert pool.grow(request, 8)
        request.computed_tokens = computed
    tables.reconcile([far, near])
    for request in (far, near):
        assert pool.grow(request, 12)
    tables.reconcile([far, near])
    # Both have two blocks and get a third; `near` has one token left before it, `far` four.
    assert tables.ids[near.request_id][-1] < tables.ids[far.request_id][-1]
    assert FIRST_BLOCK not in (tables.ids[0][-1], tables.ids[1][-1])
