"""ADBS: whose turn it is, and how quotas of KV blocks follow the load."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.clock import VirtualLoop
from harness.cost.model import CostModel
from harness.device.block_pool import BlockPool
from harness.records.record import Recorder
from harness.request import Request
from harness.sim.instance import SimInstance
from systems.muxserve.adbs import Quota, QuotaConfig, adapt, in_turn
from systems.muxserve.resident import Resident
from systems.serving.iteration import Limits
from tests.accounts import audit
from tests.running import hardware_profile, model_spec

CONFIG = QuotaConfig(window_s=5.0, high=0.9, keep=0.95, growth=0.1)
TINY = model_spec("tiny-llama")


def test_turns_go_round() -> None:
    assert in_turn(3, -1, lambda i: True) == 0
    assert in_turn(3, 0, lambda i: i != 1) == 2
    assert in_turn(3, 2, lambda i: i == 2) == 2
    assert in_turn(3, 1, lambda i: False) is None


def test_a_model_short_of_blocks_gets_a_tenth_more_from_one_that_is_not() -> None:
    assert adapt([Quota(100, 8, 95.0), Quota(100, 8, 20.0)], CONFIG) == [10, -10]


def test_blocks_of_other_sizes_are_exchanged_by_their_bytes() -> None:
    assert adapt([Quota(100, 8, 90.0), Quota(100, 16, 20.0)], CONFIG) == [10, -5]


def test_a_giver_keeps_what_it_uses_and_a_margin() -> None:
    assert adapt([Quota(1000, 8, 990.0), Quota(100, 8, 85.0)], CONFIG) == [9, -9]


def test_nothing_moves_where_all_have_enough_or_none_has() -> None:
    assert adapt([Quota(100, 8, 50.0), Quota(100, 8, 20.0)], CONFIG) == [0, 0]
    assert adapt([Quota(100, 8, 95.0), Quota(100, 8, 99.0)], CONFIG) == [0, 0]


def test_a_model_whose_next_request_finds_no_room_counts_as_full() -> None:
    assert adapt([Quota(100, 8, 0.0, starved=True), Quota(100, 8, 20.0)], CONFIG) == [10, -10]


quotas = st.builds(
    Quota,
    st.integers(1, 500),
    st.sampled_from([8, 16, 24]),
    st.floats(0, 500),
    st.booleans(),
).map(lambda q: Quota(q.num_blocks, q.block_bytes, min(q.mean_used_blocks, q.num_blocks)))


@given(st.lists(quotas, min_size=1, max_size=5))
def test_givers_give_no_less_than_takers_take_and_keep_what_they_use(held: list[Quota]) -> None:
    changes = adapt(held, CONFIG)
    moved = [change * quota.block_bytes for change, quota in zip(changes, held, strict=True)]
    assert -24 * len(held) <= sum(moved) <= 0
    for change, quota in zip(changes, held, strict=True):
        assert change >= 0 or quota.num_blocks + change >= quota.mean_used_blocks
        assert change <= max(1, 0.1 * quota.num_blocks)


def resident(num_blocks: int, seats: int = 8, budget: int = 100) -> Resident:
    loop = VirtualLoop()
    cost = CostModel(TINY, hardware_profile("h100x1"))
    instance = SimInstance("x", TINY, BlockPool(num_blocks, 4), cost, loop, Recorder([]))
    limits = Limits(
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        enable_chunked_prefill=False,
        scheduler_reserve_full_isl=True,
    )
    return Resident(instance, 0.3, loop, limits)


def waiting(model: Resident, *prompts: int) -> list[Request]:
    requests = [Request(i, 0.0, "m", prompt, 5) for i, prompt in enumerate(prompts)]
    model.waiting.extend(requests)
    return requests


def test_a_prefill_takes_whole_prompts_while_seats_blocks_and_tokens_last() -> None:
    assert len(resident_batch(resident(100, seats=2), 8, 8, 8)) == 2
    assert len(resident_batch(resident(5), 8, 8, 8)) == 2
    assert len(resident_batch(resident(100, budget=16), 8, 8, 8)) == 2


def test_a_prompt_beyond_the_budget_goes_alone() -> None:
    assert len(resident_batch(resident(100, budget=16), 40, 8)) == 1


def resident_batch(model: Resident, *prompts: int) -> list[tuple[Request, int]]:
    waiting(model, *prompts)
    return model.prefill().chunks


def test_quotas_move_only_free_blocks_and_not_beside_a_job() -> None:
    model = resident(10)
    model.instance.kv.grow(waiting(model, 24)[0], 24)
    model.owed_blocks = 8
    model.job_share = 0.3
    assert model.give() == 0
    model.job_share = 0.0
    assert model.give() == 4 * model.block_bytes
    assert (model.instance.kv.num_blocks, model.instance.kv.free_blocks) == (6, 0)
    assert model.owed_blocks == 4
    model.wanted_blocks = 3
    assert model.take(2 * model.block_bytes + 1) == 2 * model.block_bytes
    assert model.instance.kv.free_blocks == 2
    audit(model.instance.kv)
