"""A model is the checkpoint that it is said to be, and a key that nothing reads is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from harness.configuration.checkpoint import check_checkpoint, hf_config, take_checkpoint
from harness.configuration.config import typed
from harness.configuration.options import plain, refuse_ignored
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from tests.running import composed, model_spec

TINY = model_spec("tiny-llama")
OTHER = replace(TINY, num_layers=2, hidden_size=128, vocab_size=512, max_position=1000)


def saved(directory: Path, spec: ModelSpec = OTHER, **changes: Any) -> ModelSpec:
    """`spec` at a path whose config.json is its own, with `changes` in the file."""
    (directory / "config.json").write_text(json.dumps(hf_config(spec, None, None) | changes))
    return replace(spec, path=str(directory))


def test_all_that_differs_is_listed_at_once(tmp_path: Path) -> None:
    saved(tmp_path)
    check_checkpoint(replace(OTHER, path=str(tmp_path)))
    with pytest.raises(UsageError) as caught:
        check_checkpoint(replace(TINY, path=str(tmp_path)))
    said = str(caught.value)
    assert "model.num_layers is 4, the file says num_hidden_layers=2" in said
    assert "model.hidden_size is 256, the file says hidden_size=128" in said
    assert "model.vocab_size is 2048, the file says vocab_size=512" in said
    assert "model.max_position is 8192, the file allows 1000" in said
    assert "num_heads" not in said


def test_a_model_without_a_path_has_nothing_to_differ_from() -> None:
    check_checkpoint(TINY)


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 5000])
def test_a_broken_config_json_is_told_in_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=r"config\.json"):
        check_checkpoint(replace(TINY, path=str(tmp_path)))


def taken(*overrides: str, model: str = "tiny-llama") -> ModelSpec:
    config = composed(*overrides)
    OmegaConf.set_struct(config, True)  # as a command has it
    take_checkpoint(config, model, overrides)
    spec: ModelSpec = typed(plain(config)["model"], ModelSpec, "model")
    return spec


@pytest.mark.parametrize(
    "spec",
    [
        OTHER,
        replace(OTHER, qkv_bias=True, dtype="bfloat16"),
        *(model_spec(f"tiny-{name}") for name in ("qwen3", "mixtral", "opt")),
        replace(model_spec("tiny-mixtral"), family="qwen3_moe"),
    ],
)
def test_a_path_alone_is_the_model(tmp_path: Path, spec: ModelSpec) -> None:
    saved(tmp_path, spec)
    assert taken(f"model.path={tmp_path}") == replace(spec, path=str(tmp_path), name=tmp_path.name)


def test_what_is_given_beside_the_path_stays(tmp_path: Path) -> None:
    saved(tmp_path)
    spec = taken(f"model.path={tmp_path}", "model.max_position=500", "model.name=mine")
    assert (spec.max_position, spec.name, spec.hidden_size) == (500, "mine", 128)


@pytest.mark.parametrize(
    ("more", "model"), [(["model=tiny-llama"], "tiny-llama"), ([], "llama2-7b")]
)
def test_a_model_that_was_chosen_is_not_replaced(
    tmp_path: Path, more: list[str], model: str
) -> None:
    saved(tmp_path)
    assert taken(*more, f"model.path={tmp_path}", model=model).hidden_size == TINY.hidden_size


def test_a_file_that_does_not_say_enough_asks_for_a_model(tmp_path: Path) -> None:
    saved(tmp_path, hidden_size=None, vocab_size="many")
    with pytest.raises(UsageError, match=r"does not say hidden_size, vocab_size: give model=NAME"):
        taken(f"model.path={tmp_path}")


@pytest.mark.parametrize(
    ("engine", "override", "refused"),
    [
        ("openai", "system.max_num_seqs=8", True),
        ("vllm", "system.max_num_seqs=8", False),
        ("vllm", "system.scheduler_reserve_full_isl=false", True),
        ("sim", "system.scheduler_reserve_full_isl=false", False),
        ("torch", "system.max_num_seqs=8", False),
        ("openai", "+system=vllm", False),
    ],
)
def test_a_key_that_the_engine_does_not_read_is_refused(
    engine: str, override: str, refused: bool
) -> None:
    config = composed("+system=vllm", f"engine={engine}")
    if refused:
        with pytest.raises(UsageError, match=f"is not read by engine={engine}"):
            refuse_ignored(config.engine, config.system, [override])
    else:
        refuse_ignored(config.engine, config.system, [override])
