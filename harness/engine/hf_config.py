"""A checkpoint's config.json against a `ModelSpec` and what this engine computes.

Reads no tensors and needs no torch, so a mismatch is found before a worker starts.
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
