"""Hugging Face's config.json against a `ModelSpec`: written for a random model, checked for a
checkpoint. Reads no tensors and needs no torch, so a mismatch is found before a worker starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.configuration.checkpoint import mismatches, read_config, refuse
from harness.errors import UsageError
from harness.model_spec import ModelSpec

FAMILIES = ("llama", "mistral", "qwen2")
# What this engine does not compute, with the values that leave it out.
PLAIN: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "rope_type": ("default",),
}


def hf_config(spec: ModelSpec) -> dict[str, Any]:
    """The config.json of `spec`: a Llama, or with q/k/v biases a Qwen2."""
    family = "Qwen2" if spec.qkv_bias else "Llama"
    return {
        "architectures": [f"{family}ForCausalLM"],
        "model_type": family.lower(),
        "num_hidden_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.intermediate_size,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position,
        "rope_theta": spec.rope_theta,
        "rms_norm_eps": spec.rms_norm_eps,
        "tie_word_embeddings": spec.tie_embeddings,
        "hidden_act": "silu",
        "torch_dtype": spec.dtype,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def check_config(spec: ModelSpec, directory: Path) -> None:
    """Raises UsageError where the config.json in `directory` is absent, contradicts `spec` or
    asks for something that the engine does not compute."""
    path = directory / "config.json"
    found = read_config(directory)
    family = found.get("model_type")
    if family not in FAMILIES:
        valid = ", ".join(FAMILIES)
        raise UsageError(f"{path}: model_type {family!r} is not supported; valid: {valid}")
    different = mismatches(spec, found)
    if (family == "qwen2") != spec.qkv_bias:
        different.append(f"model.qkv_bias is {spec.qkv_bias}, the file is of a {family}")
    refuse(spec, different)
    for key, valid_values in PLAIN.items():
        if key in found and found[key] not in valid_values:
            raise UsageError(f"{path}: {key}={found[key]} is not supported; valid: {valid_values}")
    _check_window(spec, found, path)


def _check_window(spec: ModelSpec, found: dict[str, Any], path: Path) -> None:
    window = found.get("sliding_window") if found.get("use_sliding_window", True) else None
    if window is not None and window < spec.max_position:
        raise UsageError(
            f"{path}: attention is limited to a window of {window} tokens;"
            f" set model.max_position to at most that, it is {spec.max_position}"
        )
