"""A checkpoint's config.json against a `ModelSpec` and what this engine computes.

Reads no tensors and needs no torch, so a mismatch is found before a worker starts.
"""

from __future__ import annotations

from pathlib import Path

from harness.configuration.checkpoint import file_family, mismatches, read_config, refuse
from harness.configuration.checks import require
from harness.model_family import FAMILIES, LLAMA_TYPES, family_of
from harness.model_spec import ModelSpec


def check_config(spec: ModelSpec, directory: Path) -> None:
    """Raises UsageError where the config.json in `directory` is absent, contradicts `spec` or
    asks for something that the engine does not compute."""
    path = directory / "config.json"
    found = read_config(directory)
    kind = found.get("model_type")
    valid = ", ".join((*LLAMA_TYPES, *FAMILIES))
    told = f"{path}: model_type {kind!r} is not supported; valid: {valid}"
    require(kind in (*LLAMA_TYPES, *FAMILIES), told)
    different = mismatches(spec, found)
    name = file_family(found)
    family = family_of(name)
    if spec.family != name:
        different.append(f"model.family is {spec.family}, the file is of a {kind}")
    elif name is None and (kind == "qwen2") != spec.qkv_bias:
        different.append(f"model.qkv_bias is {spec.qkv_bias}, the file is of a {kind}")
    table = found.get("max_position_embeddings")
    if family.positions == "learned" and table != spec.max_position:
        told = f"model.max_position is {spec.max_position}, the file has a table of {table}"
        different.append(told)
    refuse(spec, different)
    for key, value in {"rope_type": "default", **family.plain}.items():
        has = found.get(key)
        has = family.absent.get(key, value) if has is None else has
        require(has == value, f"{path}: {key}={has} is not supported; valid: {value}")
    window = found.get("sliding_window") if found.get("use_sliding_window", True) else None
    told = f"{path}: attention is limited to a window of {window} tokens; set model.max_position"
    fits = window is None or window >= spec.max_position
    require(fits, f"{told} to at most that, it is {spec.max_position}")
