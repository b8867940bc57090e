"""A live run's estimates follow the speed that its workers have as they start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.cost.profile import HardwareProfile
from harness.engine.warm_speed import NUM_REQUESTS, STEPS, time_scale, timed
from tests.running import hardware_profile, model_spec
from tests.unit.engine.serving import SPEC, loaded, runner_of


@pytest.mark.parametrize(("max_position", "prompt_tokens"), [(1024, 256), (100, 92)])
def test_a_worker_times_a_prompt_and_a_step(max_position: int, prompt_tokens: int) -> None:
    spec = replace(SPEC, max_position=max_position)
    for num_blocks in (2, 64):  # fewer blocks than the prompt has, too
        found = timed(runner_of(loaded(spec), spec, num_blocks), spec, num_blocks, 8)
        assert found["prompt_tokens"] == prompt_tokens
        assert found["decode_s"] > 0
        assert found["prefill_s"] > 0


def test_estimates_are_as_slow_as_the_workers() -> None:
    profile = HardwareProfile(hardware_profile("local"))
    narrow, wide = model_spec("tiny-llama"), model_spec("tiny-llama-wide")
    context_tokens = NUM_REQUESTS * (256 + STEPS // 2)

    def told(times: float) -> dict[str, dict[str, float]]:
        """By a worker where prompts take `times` as long as profiled, steps twice that."""
        return {
            spec.name: {
                "prompt_tokens": 256,
                "prefill_s": times * profile.prefill_s(spec, 256),
                "decode_s": 2 * times * profile.decode_step_s(spec, NUM_REQUESTS, context_tokens),
            }
            for spec in (narrow, wide)
        }

    found = time_scale([told(1.0), told(2.0)], [narrow, replace(narrow, seed=1), wide], profile)
    assert set(found) == {narrow.name, wide.name}
    scaled = HardwareProfile(hardware_profile("local"), found)
    for spec in (narrow, wide):
        assert scaled.prefill_s(spec, 700) == pytest.approx(1.5 * profile.prefill_s(spec, 700))
        step_s = profile.decode_step_s(spec, 9, 900)
        assert scaled.decode_step_s(spec, 9, 900) == pytest.approx(3 * step_s)
