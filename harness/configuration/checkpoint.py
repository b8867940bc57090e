"""A checkpoint's config.json, as Hugging Face writes it, against a `ModelSpec`.

Reads no tensors and needs no torch: a mismatch is found before anything starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, open_dict

from harness.configuration.checks import require
from harness.files import read_json
from harness.model_family import FAMILIES, family_of
from harness.model_spec import DTYPE_BYTES, ModelSpec

DEFAULT_MODEL = "tiny-llama"  # of conf/config.yaml: what a command has that names no model
# What a config.json must say: the keys of these fields, and max_position_embeddings.
NEEDED = ("num_layers", "hidden_size", "num_heads", "intermediate_size", "vocab_size")


def read_config(directory: Path) -> dict[str, Any]:
    """config.json with its rope settings beside the others, rope_type also where it is spelt type,
    as of old; UsageError where there is none."""
    path = directory / "config.json"
    require(path.is_file(), f"model.path={directory} holds no config.json")
    found = read_json(path)
    rope = found.get("rope_parameters") or found.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        rope = {}
    if "type" in rope:
        rope = {"rope_type": rope["type"]} | rope
    values: dict[str, Any] = found | rope
    return values


def file_family(found: Mapping[str, Any]) -> str | None:
    """`ModelSpec.family` of a config.json; None also where the type of the model is unknown."""
    name = found.get("model_type")
    return name if name in FAMILIES else None


def hf_config(spec: ModelSpec, bos: int | None, eos: int | None) -> dict[str, Any]:
    """The config.json of `spec`; without a family a Llama's, or with biases on q, k and v a
    Qwen2's."""
    family = family_of(spec.family)
    name = "Qwen2" if spec.family is None and spec.qkv_bias else family.architecture
    return {key: getattr(spec, field) for key, field in family.fields.items()} | {
        **family.plain,
        "architectures": [f"{name}ForCausalLM"],
        "model_type": spec.family or name.lower(),
        "max_position_embeddings": spec.max_position,
        "torch_dtype": spec.dtype,
        "bos_token_id": bos,
        "eos_token_id": eos,
    }


def mismatches(spec: ModelSpec, found: Mapping[str, Any]) -> list[str]:
    """How `spec` differs from what config.json states, each as "field is X, the file says Y"."""
    return [
        f"model.{field} is {getattr(spec, field)}, the file says {key}={found[key]}"
        for key, field in family_of(file_family(found)).fields.items()
        if found.get(key) is not None and found[key] != getattr(spec, field)
    ]


def check_checkpoint(spec: ModelSpec) -> None:
    """UsageError that lists all that is different, where `spec` has a path."""
    if spec.path is None:
        return
    found = read_config(Path(spec.path))
    different = mismatches(spec, found)
    limit = found.get("max_position_embeddings")
    if isinstance(limit, int) and spec.max_position > limit:
        different.append(f"model.max_position is {spec.max_position}, the file allows {limit}")
    refuse(spec, different)


def refuse(spec: ModelSpec, different: Sequence[str]) -> None:
    told = f"model={spec.name} is not the checkpoint at model.path={spec.path}"
    instead = "model.path alone, without model=, takes the file's values"
    require(not different, f"{told}: {'; '.join(different)}. {instead}")


def require_family(spec: ModelSpec, who: str) -> None:
    """UsageError for a model that is an approximation of its family; `who` runs none."""
    matrices, layers = spec.mlp_matrices, f"{spec.num_layers} layers and KV in {spec.kv_layers}"
    told = f"model={spec.name} has {matrices} matrices in its MLP; {who} gated MLPs"
    known = spec.family is not None or matrices == 3
    require(known, f"{told} (model.mlp_matrices=3) and model.family=opt only")
    told = f"model={spec.name} has {layers}; {who} models with KV in every layer only"
    require(spec.kv_layers == spec.num_layers, told)


def values_of(directory: Path) -> dict[str, Any]:
    """The values of a `ModelSpec`'s fields that config.json in `directory` gives."""
    found = read_config(directory)
    name = file_family(found)
    family = family_of(name)
    needed = [key for key, field in family.fields.items() if field in NEEDED]
    needed += ["max_position_embeddings"]
    missing = ", ".join(key for key in needed if not isinstance(found.get(key), int))
    require(not missing, f"{directory / 'config.json'} does not say {missing}: give model=NAME")
    heads = found["num_attention_heads"]
    values: dict[str, Any] = {"num_kv_heads": heads}
    values["head_dim"] = found["hidden_size"] // max(1, heads)
    found = family.absent | {key: value for key, value in found.items() if value is not None}
    values |= {field: found[key] for key, field in family.fields.items() if key in found}
    values |= {"name": directory.resolve().name, "max_position": found["max_position_embeddings"]}
    values |= {"mlp_matrices": 3, "num_kv_layers": None, "family": name}
    values["qkv_bias"] = found.get("model_type") == "qwen2" or bool(found.get("attention_bias"))
    dtype = found.get("dtype") or found.get("torch_dtype")
    return values | family.spec | ({"dtype": dtype} if dtype in DTYPE_BYTES else {})


def take_checkpoint(config: DictConfig, model: str, overrides: Sequence[str]) -> None:
    """Puts the checkpoint's values into `config`, but for those that are overridden one by one,
    where `overrides` give model.path and nobody has chosen a model (`model`: the option of the
    group): the model is then the checkpoint's."""
    given = {word.lstrip("+").partition("=")[0] for word in overrides}
    if "model.path" not in given or "model" in given or model != DEFAULT_MODEL:
        return
    if config.model.path is None:
        return
    with open_dict(config.model):  # some fields are absent by default
        for field, value in values_of(Path(str(config.model.path))).items():
            if f"model.{field}" not in given and (field in config.model or value is not None):
                config.model[field] = value
