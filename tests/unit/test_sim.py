"""The simulator against its per-token oracle and against arithmetic done by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.clock import VirtualLoop
from harness.cluster import Cluster
from harness.cost.model import CostModel, steps_time_s, steps_to_reach
from harness.cost.profile import HardwareProfile
from harness.device.block_pool import BlockPool
from harness.records.record import Recorder
from harness.request import Request
from harness.running.client import Client
from harness.sim.instance import SimInstance
from systems.baselines.vllm import VllmSystem
from tests.accounts import audit
from tests.examples import examples
from tests.running import hardware_profile, model_spec
from tests.unit.sim_oracle import PerTokenInstance

MODEL = model_spec("llama2-7b")
A100 = hardware_profile("a100x1")
TURNAROUND_S = 7e-4
CALLED = replace(A100, calibration=replace(A100.calibration, turnaround_s=TURNAROUND_S))


@given(
    st.integers(1, 5000),
    st.floats(1e-4, 1.0),
    st.floats(0.0, 1e-3),
)
def test_the_inverted_quadratic_finds_the_step_boundary(n: int, step: float, growth: float) -> None:
    boundary = steps_time_s(n, step, growth)
    assert steps_to_reach(boundary, step, growth) == n
    assert steps_to_reach(boundary * (1 + 1e-9) + 1e-12, step, growth) == n + 1
    assert steps_to_reach(boundary - step / 2, step, growth) == n


def test_a_decode_step_grows_with_batch_and_context() -> None:
    cost = CostModel(MODEL, A100)
    one, growth = cost.decode_step(1, 0)
    assert cost.decode_step(64, 0)[0] > one
    assert cost.decode_step(1, 1000)[0] == pytest.approx(one + 1000 * growth)
    assert cost.decode_step(8, 0)[1] == pytest.approx(8 * growth)
    # Reading 13 GB of weights at 2 TB/s takes 6.6 ms: no step is faster.
    assert one > MODEL.weight_bytes / A100.memory_bandwidth_bytes_per_s


def test_cutting_a_prompt_in_two_costs_another_iteration_and_not_less() -> None:
    cost = CostModel(MODEL, A100)
    whole = cost.mixed_step([(0, 1024)], 0, 0)
    halves = cost.mixed_step([(0, 512)], 0, 0) + cost.mixed_step([(512, 512)], 0, 0)
    assert whole < halves < 2 * whole


def play(
    rows: list[tuple[float, int, int]], num_blocks: int, seats: int, kind: type[SimInstance]
) -> list[np.ndarray]:
    loop = VirtualLoop()
    requests = [Request(i, *row[:1], "m", *row[1:]) for i, row in enumerate(rows)]
    recorder = Recorder(requests)
    instances = [
        kind(f"sim-{i}", MODEL, BlockPool(num_blocks, 16), CostModel(MODEL, CALLED), loop, recorder)
        for i in range(2)
    ]
    profile = HardwareProfile(A100)
    cluster = Cluster(
        {"m": MODEL}, instances, (), (), profile, recorder.completed, recorder.failed, ()
    )
    config = VllmSystem.Config(
        max_num_seqs=seats,
        max_num_batched_tokens=256,
        enable_chunked_prefill=True,
        scheduler_reserve_full_isl=True,
        enable_prefix_caching=True,
    )
    system = VllmSystem(config, loop=loop, cluster=cluster)
    client = Client(1e6, loop=loop, recorder=recorder, system=system)

    async def main() -> None:
        loop.spawn(system.serve(), name="system")
        await client.play(requests)

    loop.run(main())
    for instance in instances:
        audit(instance.kv)
        assert instance.kv.used_blocks == 0
    assert recorder.num_tokens == sum(row[2] for row in rows)
    return [recorder.records[i].token_times_s() for i in range(len(rows))]


ROWS = st.lists(
    st.tuples(st.floats(0, 0.5), st.integers(1, 400), st.integers(1, 120)), min_size=1, max_size=24
).map(lambda rows: sorted(rows, key=lambda row: row[0]))


@examples(60)
@given(ROWS, st.integers(33, 120), st.integers(1, 12))
def test_macro_steps_equal_per_token_stepping(
    rows: list[tuple[float, int, int]], num_blocks: int, seats: int
) -> None:
    fast = play(rows, num_blocks, seats, SimInstance)
    slow = play(rows, num_blocks, seats, PerTokenInstance)
    for quick, reference in zip(fast, slow, strict=True):
        assert len(quick) == len(reference)
        assert np.abs(quick - reference).max() < 1e-6


def test_every_execute_takes_its_turnaround_once_however_many_steps_it_runs() -> None:
    (times,) = play([(0.0, 100, 11)], 100, 8, SimInstance)
    cost = CostModel(MODEL, CALLED)
    prefill_s = TURNAROUND_S + cost.mixed_step([(0, 100)], 0, 0)
    assert times[0] == pytest.approx(prefill_s)
    decodes_s = TURNAROUND_S + steps_time_s(10, *cost.decode_step(1, 101))
    assert times[-1] == pytest.approx(prefill_s + decodes_s)


def test_growing_by_steps_is_growing_each() -> None:
    rng = np.random.default_rng(0)
    together, each = BlockPool(40, 16), BlockPool(40, 16)
    requests = [Request(i, 0.0, "m", 8, 500) for i in range(6)]
    for request in requests:
        assert together.grow(request, 1)
        assert each.grow(request, 1)
    fits = True
    while fits:
        steps = int(rng.integers(0, 30))
        before = dict(together.held)
        wanted = sum(each.blocks_for(r.computed_tokens + steps) for r in requests)
        fits = wanted <= each.num_blocks
        grown = together.grow_steps(requests, steps)
        assert (grown is not None) == fits
        for request in requests if fits else ():
            assert each.grow(request, request.computed_tokens + steps)
        for request, held in grown or ():
            assert before[request.request_id] == held < together.held[request.request_id]
        for request in requests:
            request.computed_tokens += steps
        assert together.held == each.held
        audit(together)
    assert together.free_blocks < 6 * 2


@pytest.mark.parametrize("computed", range(1, 35))
def test_a_decode_is_grown_where_its_steps_leave_its_last_block(computed: int) -> None:
    for steps in range(1, 35):
        pool, decode = BlockPool(40, 16), Request(0, 0.0, "m", 8, 500, computed, 1)
        assert pool.grow(decode, computed)
        assert pool.grow_steps([decode], steps) is not None
        assert pool.held[0] == pool.blocks_for(computed + steps)
