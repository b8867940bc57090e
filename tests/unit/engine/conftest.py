"""Checkpoints and reference models of the three supported families, made by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from harness.model_spec import ModelSpec
from tests.unit.engine.serving import SPEC, spec_like

# These models are too small to share out, and OpenMP threads that wait for each other's cores on
# a busy machine take minutes for what one thread does in a second.
torch.set_num_threads(1)


class Family(NamedTuple):
    spec: ModelSpec  # with the checkpoint's path
    reference: Any  # the transformers model


def reference_model(name: str, **changes: Any) -> Any:
    import transformers

    config = getattr(transformers, f"{name}Config")(
        num_hidden_layers=SPEC.num_layers,
        hidden_size=SPEC.hidden_size,
        num_attention_heads=SPEC.num_heads,
        num_key_value_heads=SPEC.num_kv_heads,
        head_dim=SPEC.head_dim,
        intermediate_size=SPEC.intermediate_size,
        vocab_size=SPEC.vocab_size,
        max_position_embeddings=SPEC.max_position,
        rope_theta=SPEC.rope_theta,
        rms_norm_eps=SPEC.rms_norm_eps,
        initializer_range=0.15,  # large enough for attention to depend on positions
        **changes,
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")._from_config(
        config, attn_implementation="eager"
    )
    for parameter in model.parameters():  # biases and norms start at 0 and 1: make them matter
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=float(parameter.detach().mean()), std=0.1)
    return model.eval()


FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("Llama", {}, {}),
    "mistral": ("Mistral", {"sliding_window": None}, {}),
    "qwen2": ("Qwen2", {}, {"qkv_bias": True}),
    "tied": ("Llama", {"tie_word_embeddings": True}, {"tie_embeddings": True}),
}


@pytest.fixture(scope="session", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    name, config_changes, spec_changes = FAMILIES[request.param]
    directory: Path = tmp_path_factory.mktemp(request.param)
    model = reference_model(name, **config_changes)
    model.save_pretrained(directory)
    return Family(spec_like(directory, **spec_changes), model)
