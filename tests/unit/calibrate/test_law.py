"""What no constants may break: more work never takes less, more devices share it."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.calibrate import zoo
from harness.cost.collectives import all_reduce_s
from harness.cost.hardware import StepCoefficients
from harness.cost.law import Part, coefficients, law, stage
from harness.cost.model import CostModel, steps_time_s

MODELS = st.sampled_from([n for n in zoo.names("model") if n != "tiny-llama"])
DEVICES = st.sampled_from(zoo.names("hardware/device"))
LLAMA, A100 = zoo.model("llama2-7b"), zoo.device("a100_sxm")


@settings(deadline=None)  # the first example composes conf/
@given(MODELS, DEVICES, st.integers(1, 8000), st.integers(0, 8000), st.integers(0, 300))
def test_one_more_token_never_makes_an_iteration_faster(
    model: str, device: str, tokens: int, before: int, decodes: int
) -> None:
    cost = CostModel(zoo.model(model), zoo.device(device))
    context = decodes * 500
    step_s = cost.mixed_step([(before, tokens)], decodes, context)
    assert step_s < cost.mixed_step([(before, tokens + 1)], decodes, context)
    assert step_s < cost.mixed_step([(before + 1, tokens)], decodes, context)
    assert step_s < cost.mixed_step([(before, tokens)], decodes + 1, context + 500)
    if decodes:
        assert cost.decode_step(decodes, context)[0] < step_s
        assert cost.decode_step(decodes, context)[0] < cost.decode_step(decodes + 1, context)[0]
        assert cost.decode_step(decodes, context)[0] < cost.decode_step(decodes, context + 1)[0]


@settings(deadline=None)  # the first example composes conf/
@given(MODELS, DEVICES, st.integers(1, 200), st.integers(1, 2000))
def test_decode_steps_grow_by_a_constant(model: str, device: str, batch: int, length: int) -> None:
    cost = CostModel(zoo.model(model), zoo.device(device))
    first_s, growth_s = cost.decode_step(batch, batch * length)
    steps = [cost.decode_step(batch, batch * (length + i))[0] for i in range(4)]
    assert sum(steps) == pytest.approx(steps_time_s(4, first_s, growth_s))


@settings(deadline=None)  # the first example composes conf/
@given(MODELS, DEVICES)
def test_tensor_parallelism_divides_reads_and_attention(model: str, device: str) -> None:
    hardware, spec = zoo.device(device), zoo.model(model)
    one, two = (law(zoo.sharded(model, tp), hardware, hardware.calibration) for tp in (1, 2))
    assert two.attend_s == pytest.approx(one.attend_s / 2)
    assert two.context_s == pytest.approx(one.context_s / 2)
    latency_s, per_token_s = all_reduce_s(spec.dtype_bytes * spec.hidden_size, 2, hardware)
    all_reduces = 2 * spec.num_layers
    assert two.weights_s == pytest.approx(one.weights_s / 2 + all_reduces * latency_s)
    assert two.token_s == pytest.approx(one.token_s / 2 + all_reduces * per_token_s)
    assert two.launch_s > one.launch_s


def test_kv_heads_are_not_cut() -> None:
    model = zoo.model("qwen2.5-7b")  # 4 heads of KV, 28 of queries: 57,344 bytes a token
    held = {tp: replace(model, tp=tp).held_kv_bytes_per_token for tp in (1, 2, 4, 7, 14)}
    assert held == {1: 57344, 2: 57344, 4: 57344, 7: 57344 * 7 // 4, 14: 57344 * 14 // 4}
    free = replace(A100.calibration, decode_attention_efficiency=1e12)  # only reads are left
    context_s = [law(replace(model, tp=tp), A100, free).context_s for tp in (4, 7, 14)]
    assert context_s == pytest.approx(context_s[:1] * 3)


def test_the_floor_of_a_step_reads_all_layers_and_the_vocabulary() -> None:
    """Llama-2-7B: 32 x 202,383,360 + 32,000 x 4,096 parameters of 2 bytes at 2.039 TB/s."""
    whole = replace(A100.calibration, memory_efficiency=1.0)
    assert law(LLAMA, A100, whole).weights_s == pytest.approx(6.4809e-3, rel=1e-4)


def test_an_all_reduce_takes_what_the_ring_does() -> None:
    """Of 1 GB at 0.72 x 300 GB/s, 7/4 of it moved by eight devices; 10 µs, and a quarter more for
    each device beyond two."""
    assert all_reduce_s(1e9, 8, A100) == pytest.approx((25e-6, 8.1019e-3), rel=1e-4)
    assert all_reduce_s(1e9, 2, A100) == pytest.approx((10e-6, 4.6296e-3), rel=1e-4)


def test_cuda_graphs_take_the_launches_out_of_decodes_alone() -> None:
    eager, graphs = CostModel(LLAMA, A100), CostModel(LLAMA, A100, launch=0.0)
    assert graphs.decode_step(1, 100)[0] < eager.decode_step(1, 100)[0]
    assert graphs.mixed_step([(0, 100)], 0, 0) == eager.mixed_step([(0, 100)], 0, 0)


def test_stages_share_the_layers_and_not_the_overheads() -> None:
    whole, _ = coefficients(LLAMA, A100)
    half = stage(whole, 0.5)
    assert half.token_s == whole.token_s / 2
    assert half.decode_s == whole.decode_s
    cost = CostModel(LLAMA, A100, Part(num_layers=16))
    full_s = CostModel(LLAMA, A100).decode_step(8, 800)[0]
    assert full_s / 2 < cost.decode_step(8, 800)[0] < full_s


def test_a_faster_device_is_predicted_to_be_faster() -> None:
    mean = zoo.device("h20").calibration
    slow, fast = (law(LLAMA, zoo.device(d), mean) for d in ("h100_sxm", "h200_sxm"))
    assert fast.weights_s == pytest.approx(slow.weights_s * 3.35 / 4.8)
    assert fast.token_s == slow.token_s


def test_measured_terms_replace_the_law() -> None:
    made_up = StepCoefficients(**{field.name: 1.0 for field in fields(StepCoefficients)})
    calibration = replace(A100.calibration, measured={"llama2-7b_tp1": made_up})
    known = replace(A100, calibration=calibration)
    assert coefficients(LLAMA, known) == (made_up, "measured")
    assert coefficients(replace(LLAMA, tp=2), known)[1] == "device law"


def test_one_device_reduces_nothing() -> None:
    assert all_reduce_s(1e9, 1, A100) == (0.0, 0.0)
