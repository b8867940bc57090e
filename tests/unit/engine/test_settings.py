"""What engine=torch is told is checked before a worker starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.configuration.config import build
from harness.configuration.options import plain
from harness.engine.engine import check_models
from harness.errors import UsageError
from tests.running import composed, model_spec


def build_engine(override: str) -> None:
    build(plain(composed("engine=torch", override).engine), "engine")


@pytest.mark.parametrize("value", ["-1", "0", "nan", "inf"])
@pytest.mark.parametrize("key", ["start_timeout_s", "hang_timeout_s", "step_timeout_s"])
def test_a_timeout_is_a_finite_time(key: str, value: str) -> None:
    with pytest.raises(UsageError, match=rf"engine\.{key}=\S+ must be above 0"):
        build_engine(f"engine.{key}={value}")


@pytest.mark.parametrize("value", ["-1", "0", "1.01", "2", "nan"])
def test_a_share_of_memory_is_at_most_all_of_it(value: str) -> None:
    with pytest.raises(UsageError, match=r"engine\.memory_fraction=\S+ must be above 0 and at"):
        build_engine(f"engine.memory_fraction={value}")


@pytest.mark.parametrize("key", ["layer_s", "token_s"])
def test_a_pace_is_no_negative_time(key: str) -> None:
    with pytest.raises(UsageError, match=rf"{key}=-1 must be at least 0"):
        build_engine(f"engine.elastic.{key}=-1")


def test_all_of_the_memory_may_be_taken() -> None:
    build_engine("engine.memory_fraction=1")


def test_models_that_the_engine_cannot_run_are_refused() -> None:
    tiny = model_spec("tiny-llama")
    check_models([tiny])
    for changed, said in (
        ({"tp": 2}, r"model\.tp=2 is not supported"),
        ({"mlp_matrices": 2}, "has 2 matrices in its MLP"),
        ({"num_kv_layers": 3}, "has 4 layers and KV in 3"),
    ):
        with pytest.raises(UsageError, match=said):
            check_models([tiny, replace(tiny, **changed)])
