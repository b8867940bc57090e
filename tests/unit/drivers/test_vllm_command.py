"""What a vLLM server is asked for follows from the experiment's values, and from nothing else."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from harness.configuration.checkpoint import hf_config
from harness.drivers.vllm_command import flag, model_flags, placements, scheduler_flags
from harness.errors import UsageError
from tests.unit.drivers.specs import TINY


def test_a_value_becomes_a_flag() -> None:
    assert flag("max_num_seqs", 64) == ["--max-num-seqs", "64"]
    assert flag("enable_chunked_prefill", False) == ["--no-enable-chunked-prefill"]
    assert flag("block_size", None) == []


def test_only_what_vllm_knows_of_a_system_is_passed_on() -> None:
    values = {"dispatch": "round_robin", "max_num_batched_tokens": 512, "max_num_seqs": 8}
    assert scheduler_flags(values) == [
        "--max-num-seqs", "8", "--max-num-batched-tokens", "512",
    ]  # fmt: skip


def test_a_model_without_a_path_gets_a_directory_and_no_tokenizer(tmp_path: Path) -> None:
    flags = model_flags(TINY, "default", tmp_path, "dummy")
    written = json.loads((tmp_path / "tiny-llama" / "config.json").read_text())
    assert written == hf_config(TINY, None, None)
    assert flags[flags.index("--model") + 1] == str(tmp_path / "tiny-llama")
    assert flags[flags.index("--load-format") + 1] == "dummy"
    assert "--skip-tokenizer-init" in flags


def test_a_model_with_a_path_is_served_as_it_is(tmp_path: Path) -> None:
    flags = model_flags(replace(TINY, path="/models/some"), "default", tmp_path, "dummy")
    assert flags[flags.index("--model") + 1] == "/models/some"
    assert "--load-format" not in flags
    assert "--skip-tokenizer-init" not in flags
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"mlp_matrices": 2}, "2 matrices in its MLP"), ({"num_kv_layers": 3}, "KV in 3")],
)
def test_a_shape_that_a_llama_has_not_is_not_made(
    changed: dict[str, int], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        model_flags(replace(TINY, **changed), "default", tmp_path, "dummy")
    assert not any(tmp_path.iterdir())
    assert model_flags(replace(TINY, path="/models/some", **changed), "default", tmp_path, "dummy")


def test_biases_on_qkv_make_it_a_qwen2() -> None:
    assert hf_config(TINY, None, None)["architectures"] == ["LlamaForCausalLM"]
    assert hf_config(replace(TINY, qkv_bias=True), None, None)["architectures"] == [
        "Qwen2ForCausalLM"
    ]


def test_servers_share_no_gpu() -> None:
    assert [place["CUDA_VISIBLE_DEVICES"] for place in placements(2, 2, {})] == ["0,1", "2,3"]
    chosen = placements(2, 1, {"CUDA_VISIBLE_DEVICES": "4,7"})
    assert [place["CUDA_VISIBLE_DEVICES"] for place in chosen] == ["4", "7"]
    with pytest.raises(UsageError, match="asks for 2 devices, but CUDA_VISIBLE_DEVICES=4 shows 1"):
        placements(2, 1, {"CUDA_VISIBLE_DEVICES": "4"})


def test_a_server_sees_the_gpus_that_lend_to_it_behind_its_own() -> None:
    assert placements(1, 2, {}, 2) == [{"CUDA_VISIBLE_DEVICES": "0,1,2,3"}]
    assert placements(1, 1, {"CUDA_VISIBLE_DEVICES": "4,7"}, 1) == [{"CUDA_VISIBLE_DEVICES": "4,7"}]
    assert placements(1, 1, {"CUDA_VISIBLE_DEVICES": "4"}, 1) == [{"CUDA_VISIBLE_DEVICES": "4"}]


def test_servers_share_no_core(monkeypatch: pytest.MonkeyPatch) -> None:
    def bound(cores: int, servers: int, tp: int) -> list[str | None]:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
        places = placements(servers, tp, {})
        return [place.get("VLLM_CPU_OMP_THREADS_BIND") for place in places]

    assert bound(8, 1, 1) == [None]  # vLLM's own choice
    assert bound(8, 2, 1) == ["0,1,2", "4,5,6"]
    assert bound(8, 2, 2) == ["0|2", "4|6"]
    assert bound(2, 2, 1) == ["0", "1"]
    assert bound(1, 2, 1) == ["nobind", "nobind"]
    assert "VLLM_CPU_OMP_THREADS_BIND" not in placements(
        2, 1, {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    )[0]  # fmt: skip
