"""What is written as a checkpoint is read as the same model, here and by transformers; one that the
engine would compute otherwise is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.engine.hf_config import check_config
from harness.engine.weights import ENDS, HostWeights
from harness.engine.work import BatchWork, Chunk
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from tests.checkpoints import save_checkpoint
from tests.unit.engine.serving import SPEC, VARIANTS, loaded, runner_of, spec_like

STEPS = 32
PROMPTS = [[7 * i % SPEC.vocab_size for i in range(n, 2 * n)] for n in (3, 19, 45)]
BLOCKS = [range(1, 11), range(40, 50), range(20, 30)]


def saved(directory: Path, family: str) -> ModelSpec:
    """A random model of `family`, as a checkpoint."""
    save_checkpoint(replace(SPEC, **VARIANTS[family]), directory)
    return spec_like(directory, **VARIANTS[family])


@pytest.mark.parametrize("family", VARIANTS)
def test_a_saved_checkpoint_holds_the_random_weights(tmp_path: Path, family: str) -> None:
    spec = saved(tmp_path, family)
    check_config(spec, tmp_path)
    random, read = HostWeights(replace(spec, path=None)), HostWeights(spec)
    pairs = [(random.ends(), read.ends())]
    pairs += [(random.tensors(i), read.tensors(i)) for i in range(SPEC.num_layers)]
    kept = [random.tensors(ENDS), *(ours for ours, _ in pairs[1:])]
    assert sum(each.nbytes for ours in kept for each in ours.values()) == spec.weight_bytes
    for ours, theirs in pairs:
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("family", VARIANTS)
def test_transformers_reads_a_saved_checkpoint_as_the_same_model(
    tmp_path: Path, family: str
) -> None:
    from transformers import AutoModelForCausalLM

    spec = saved(tmp_path, family)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    runner = runner_of(loaded(spec), spec)
    chunks = [Chunk(0, len(ids), True) for ids in PROMPTS]
    work = BatchWork(chunks, [], list(chain(*PROMPTS)), BLOCKS)
    with torch.inference_mode():
        step, _ = runner.step(work, runner.attention(work))
        hidden = runner.forward(runner.embed(torch.tensor(work.ids), step), step, 0, 3)
        ours = runner._decoder.logits(hidden)[: len(work.ids)]
        theirs = torch.cat([reference(torch.tensor([ids])).logits[0] for ids in PROMPTS])
        assert (ours - theirs).abs().max() < 1e-4
        told = list(runner.steps(work, 1))
        lengths = [len(ids) for ids in PROMPTS]
        told += runner.steps(BatchWork([], lengths, told[0], BLOCKS), STEPS)
        for number, prompt in enumerate(PROMPTS):
            ids = list(prompt)
            for _ in range(1 + STEPS):
                ids.append(int(reference(torch.tensor([ids])).logits[0, -1].argmax()))
            assert [each[number] for each in told] == ids[len(prompt) :]
            assert len(set(ids[len(prompt) :])) > 4  # not the same one again and again


@pytest.mark.parametrize(
    ("family", "in_file", "in_spec", "said"),
    [
        ("llama", {}, {"hidden_size": 128}, "hidden_size is 128, the file says hidden_size=64"),
        ("llama", {}, {"rope_theta": 5e5}, "rope_theta"),
        ("llama", {}, {"qkv_bias": True}, "qkv_bias is True, the file is of a llama"),
        (
            "llama",
            {"rope_scaling": {"type": "linear", "factor": 4.0}},
            {},
            "rope_type=linear is not",
        ),
        ("llama", {"mlp_bias": True}, {}, "mlp_bias=True is not supported; valid: False"),
        ("llama", {"model_type": "gpt2"}, {}, "'gpt2' is not supported; valid: llama, mistral, q"),
        ("qwen3", {}, {"family": None}, "model.family is None, the file is of a qwen3"),
        ("mixtral", {"num_local_experts": 8}, {}, "num_experts is 4, the file says num_local_expe"),
        ("qwen3_moe", {"norm_topk_prob": None}, {}, "norm_topk_prob=False is not supported"),
        ("qwen3_moe", {"mlp_only_layers": [1]}, {}, r"mlp_only_layers=\[1\] is not supported"),
        ("opt", {"do_layer_norm_before": False}, {}, "do_layer_norm_before=False is not supported"),
        ("opt", {"word_embed_proj_dim": 32}, {}, "hidden_size is 64, the file says word_embed_pro"),
        ("opt", {}, {"max_position": 100}, "max_position is 100, the file has a table of 256"),
    ],
)
def test_a_checkpoint_that_is_another_model_is_refused(
    tmp_path: Path, family: str, in_file: dict[str, Any], in_spec: dict[str, Any], said: str
) -> None:
    spec = saved(tmp_path, family)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | in_file))
    with pytest.raises(UsageError, match=said):
        check_config(replace(spec, **in_spec), tmp_path)


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"config\.json"):
        check_config(spec_like(tmp_path), tmp_path)
