"""Iterations under an engine generation: its device's kernels, and what it adds to them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.calibrate import zoo
from harness.configuration.config import build, settings
from harness.configuration.options import plain
from harness.cost.hardware import Hardware, Silicon
from harness.cost.law import Part
from harness.cost.model import CostModel
from harness.cost.served import EngineCosts, ServedCost, cost_model
from harness.cost.silicon import work
from harness.errors import UsageError
from harness.sim.engine import SimEngine
from tests.running import composed, run_here

LLAMA, H100 = zoo.model("llama3.1-8b"), zoo.device("h100_sxm")
NOTHING = EngineCosts(
    step_s=0.0, request_s=0.0, chunk_s=0.0, mixed_s=0.0, launch_layer_s=0.0, all_reduce_factor=0.0,
    graph_tokens=[1, 2, 4, 8, 16], path_s=0.0,
)  # fmt: skip
PERFECT = Silicon(
    basis="made up", products_tokens=[1.0], products_efficiency=[1.0], layer_s=0.0,
    attention_efficiency=1.0, fewest_queries=1.0, kv_efficiency=1.0, mixed_kv_efficiency=1.0,
    sequence_layer_s=0.0, sequence_s=0.0,
)  # fmt: skip


def on(silicon: Silicon = PERFECT, **adds: float) -> ServedCost:
    return ServedCost(LLAMA, replace(H100, silicon=silicon), replace(NOTHING, **adds))


def test_perfect_silicon_reads_all_weights_but_the_embedding_once() -> None:
    read = LLAMA.weight_bytes - LLAMA.vocab_size * LLAMA.hidden_size * LLAMA.dtype_bytes
    step_s, growth_s = on().decode_step(1, 0)
    assert step_s == pytest.approx(read / H100.memory_bandwidth_bytes_per_s, rel=1e-4)
    assert growth_s == LLAMA.kv_bytes_per_token / H100.memory_bandwidth_bytes_per_s


def test_many_tokens_are_multiplied_at_the_pace_of_the_flops() -> None:
    n = 4096
    multiply_s = 2 * LLAMA.num_layers * LLAMA.layer_params * n / H100.dense_flop_per_s
    attend_s = float(work(LLAMA, H100).attend_s) * n * (n + 1) / 2
    head_s = 2 * LLAMA.vocab_size * LLAMA.hidden_size / H100.memory_bandwidth_bytes_per_s
    assert on().mixed_step([(0, n)], 0, 0) == pytest.approx(multiply_s + attend_s + head_s)


def test_efficiency_is_read_at_the_tokens_of_an_iteration() -> None:
    half = replace(PERFECT, products_tokens=[1.0, 4096.0], products_efficiency=[1.0, 0.5])
    halved = on(half).mixed_step([(0, 4096)], 0, 0) - on().mixed_step([(0, 4096)], 0, 0)
    assert halved == pytest.approx(float(work(LLAMA, H100).token_s) * 4096)
    assert on(half).decode_step(1, 9) == on().decode_step(1, 9)


def test_decodes_take_as_long_as_the_graph_they_are_padded_to() -> None:
    slow = replace(PERFECT, products_tokens=[1.0, 16.0], products_efficiency=[1.0, 0.1])
    steps = [on(slow).decode_step(n, 0)[0] for n in (5, 8, 9, 16, 17)]
    assert steps[0] == pytest.approx(steps[1], rel=0.05)  # the vocabulary's product is not padded
    assert steps[2] == pytest.approx(steps[3], rel=0.05)
    assert steps[2] > 1.2 * steps[1]


def test_what_no_graph_replays_takes_at_least_its_launches() -> None:
    launched = on(launch_layer_s=1.0)
    assert launched.decode_step(16, 0) == on().decode_step(16, 0)
    assert launched.decode_step(17, 0)[0] == 1.0 * LLAMA.num_layers
    assert launched.mixed_step([(0, 8)], 8, 0) == on().mixed_step([(0, 8)], 8, 0)
    attend_s = float(work(LLAMA, H100).attend_s) * 100 * 101 / 2
    assert launched.mixed_step([(0, 100)], 0, 0) == pytest.approx(LLAMA.num_layers + attend_s)


def test_an_engine_adds_to_each_iteration_request_and_prompt() -> None:
    adds = on(step_s=1.0, request_s=0.1, chunk_s=10.0, mixed_s=100.0)
    assert adds.decode_step(3, 0)[0] - on().decode_step(3, 0)[0] == pytest.approx(1.3)
    chunks = [(0, 8), (0, 8)]
    more_s = adds.mixed_step(chunks, 3, 0) - on().mixed_step(chunks, 3, 0)
    assert more_s == pytest.approx(121.5)


def test_a_chunk_of_few_queries_takes_the_time_of_as_many_as_fill_the_device() -> None:
    few = on(replace(PERFECT, fewest_queries=256.0))
    behind_s = few.mixed_step([(4096, 16)], 0, 0) - few.mixed_step([(0, 16)], 0, 0)
    assert behind_s == pytest.approx(float(work(LLAMA, H100).attend_s) * 256 * 4096)


def test_tensor_parallelism_divides_the_work_and_adds_all_reduces() -> None:
    hardware, two = replace(H100, silicon=PERFECT), zoo.sharded("llama3.1-8b", 2)
    free = ServedCost(two, hardware, NOTHING).decode_step(1, 0)[0]
    assert free == pytest.approx(on().decode_step(1, 0)[0] / 2, rel=1e-3)
    paid = ServedCost(two, hardware, replace(NOTHING, all_reduce_factor=2.0)).decode_step(1, 0)[0]
    assert paid - free == pytest.approx(2 * 2 * LLAMA.num_layers * H100.nvlink_latency_s, rel=0.1)


def test_shares_of_a_device_slow_down_as_the_eager_model_does() -> None:
    whole = on()
    part = ServedCost(LLAMA, replace(H100, silicon=PERFECT), NOTHING, Part(compute_share=0.5))
    assert part.decode_step(1, 0)[0] == pytest.approx(1.18 * whole.decode_step(1, 0)[0])
    rivals = ServedCost(LLAMA, replace(H100, silicon=PERFECT), NOTHING, Part(rivals=1.0))
    assert rivals.decode_step(1, 99)[0] == pytest.approx(2 * whole.decode_step(1, 99)[0])


def test_the_default_profile_is_the_calibration_as_it_was() -> None:
    node = plain(composed("+system=vllm", "engine=sim").engine)
    config = settings(node, SimEngine, "engine")
    assert (config.profile, config.costs) == ("eager_2024", None)
    same = cost_model(LLAMA, H100, config.costs)
    assert type(same) is CostModel
    assert same.decode_step(8, 4000) == CostModel(LLAMA, H100).decode_step(8, 4000)


def test_a_profile_is_chosen_by_its_name() -> None:
    node = plain(composed("+system=vllm", "engine=sim", "engine.profile=vllm_v1").engine)
    config = settings(node, SimEngine, "engine")
    assert config.costs is not None
    assert config.costs.graph_tokens[-1] == 512
    assert build(node, "engine").name == "sim"


def test_an_unknown_profile_is_said_with_the_valid_ones() -> None:
    with pytest.raises(UsageError, match=r"engine.profile=v9 is unknown; valid: eager_2024, vllm"):
        plain(composed("+system=vllm", "engine=sim", "engine.profile=v9").engine)


def test_a_device_without_silicon_has_no_other_profile() -> None:
    cpu: Hardware = zoo.hardware("local")
    with pytest.raises(UsageError, match="hardware=local has no silicon"):
        cost_model(LLAMA, cpu, NOTHING)


def test_a_run_says_its_profile_and_what_it_rests_on(tmp_path: object) -> None:
    from pathlib import Path

    from harness.records.run_folder import FinishedRun

    overrides = (
        "+system=vllm", "+workload=azure_code", "workload.num_requests=20", "engine=sim",
        "hardware=h100x1", "model=llama3.1-8b",
    )  # fmt: skip
    folders = [Path(str(tmp_path)) / name for name in ("eager", "v1")]
    eager = run_here(folders[0], *overrides)
    served = run_here(folders[1], *overrides, "engine.profile=vllm_v1")
    engine = FinishedRun.load(folders[1]).manifest["engine"]
    assert engine["profile"] == "vllm_v1"
    assert engine["step_times"] == {"llama3.1-8b": "served batches"}
    assert served["tpot_s"]["p50"] < eager["tpot_s"]["p50"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"products_tokens": [1.0, 2.0]}, "equal length"),
        ({"products_tokens": [2.0, 1.0], "products_efficiency": [1.0, 1.0]}, "must ascend"),
        ({"products_efficiency": [0.0]}, "must be above 0"),
        ({"kv_efficiency": 0.0}, "kv_efficiency=0.0 must be a finite number above 0"),
    ],
)
def test_silicon_that_no_device_has_is_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(PERFECT, **wrong)  # type: ignore[arg-type]


def test_the_stages_of_a_pipeline_add_up_to_the_whole() -> None:
    hardware, engine = replace(H100, silicon=PERFECT), replace(NOTHING, step_s=1e-3, request_s=1e-5)
    first, second = (
        cost_model(LLAMA, hardware, engine, Part(16, first)) for first in (True, False)
    )
    whole = cost_model(LLAMA, hardware, engine)
    for steps in (
        [one.decode_step(8, 4000)[0] for one in (first, second, whole)],
        [one.mixed_step([(0, 100)], 4, 4000) for one in (first, second, whole)],
    ):
        assert steps[0] + steps[1] == pytest.approx(steps[2], rel=1e-6)
