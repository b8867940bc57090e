"""A decoder's weights, layer by layer: read from safetensors or drawn from a seed.

A layer is a dict of host tensors with the projections that share an input fused (q, k and v;
gate and up). Layer i of a random model depends on (seed, i) alone, so any layer can be made by
itself, and `save_checkpoint` writes the very same weights for other engines to load.

Knows nothing of devices: `runner.py` copies layers to where they run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from harness.configuration.checkpoint import hf_config
from harness.errors import UsageError
from harness.model_spec import ModelSpec

Weights = dict[str, torch.Tensor]

ENDS = -1  # in place of a layer's index: what stands before the first layer and after the last

# Our fused name -> the parts it is made of, as Hugging Face names them below "model.layers.<i>.".
LAYER_PARTS: dict[str, tuple[str, ...]] = {
    "input_norm": ("input_layernorm.weight",),
    "qkv": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "qkv_bias": ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"),
    "o": ("self_attn.o_proj.weight",),
    "post_norm": ("post_attention_layernorm.weight",),
    "gate_up": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "down": ("mlp.down_proj.weight",),
}
ENDS_PARTS: dict[str, tuple[str, ...]] = {
    "embed": ("model.embed_tokens.weight",),
    "norm": ("model.norm.weight",),
    "lm_head": ("lm_head.weight",),
}


def torch_dtype(spec: ModelSpec) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return dtype


def _parts(spec: ModelSpec, layer: int) -> dict[str, tuple[str, ...]]:
    """Our names of the tensors of `layer`, or of ENDS, and Hugging Face's of its parts."""
    if layer == ENDS:
        return {k: v for k, v in ENDS_PARTS.items() if k != "lm_head" or not spec.tie_embeddings}
    return {
        name: tuple(f"model.layers.{layer}.{part}" for part in parts)
        for name, parts in LAYER_PARTS.items()
        if name != "qkv_bias" or spec.qkv_bias
    }


def fused_shapes(spec: ModelSpec, layer: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors that `HostWeights` gives for `layer`, in their order; tied ones
    once."""
    fused = {}
    for name, parts in _parts(spec, layer).items():
        shapes = [_shape(spec, part) for part in parts]
        fused[name] = (sum(shape[0] for shape in shapes), *shapes[0][1:])
    return fused


def _shape(spec: ModelSpec, part: str) -> tuple[int, ...]:
    """The shape of a Hugging Face tensor, from the end of its name."""
    heads, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    hidden, wide = spec.hidden_size, spec.intermediate_size
    shapes = {
        "q_proj": (heads, hidden),
        "k_proj": (kv, hidden),
        "v_proj": (kv, hidden),
        "o_proj": (hidden, heads),
        "gate_proj": (wide, hidden),
        "up_proj": (wide, hidden),
        "down_proj": (hidden, wide),
        "embed_tokens": (spec.vocab_size, hidden),
        "lm_head": (spec.vocab_size, hidden),
    }
    module, kind = part.split(".")[-2:]
    shape = shapes.get(module, (hidden,))
    return shape[:1] if kind == "bias" else shape


def drawn(spec: ModelSpec, layer: int) -> Weights:
    """The parts of `layer`, or of ENDS, drawn in their order with variance 1/fan_in: activations
    keep their size and attention is neither uniform nor one-hot at any width, so that a wrong
    position or mask changes the tokens."""
    generator = torch.Generator().manual_seed((spec.seed << 16) + layer + 1)
    found: Weights = {}
    for name in chain(*_parts(spec, layer).values()):
        shape = _shape(spec, name)
        if "norm" in name:
            found[name] = torch.ones(shape, dtype=torch_dtype(spec))
            continue
        std = 1.0 if "embed_tokens" in name else shape[-1] ** -0.5
        if name.endswith("bias"):
            std = 0.1
        found[name] = (torch.randn(shape, generator=generator) * std).to(torch_dtype(spec))
    return found


def _tensor_files(directory: Path) -> dict[str, Path]:
    """Which safetensors file of `directory`, a Hugging Face model, holds each tensor."""
    files: dict[str, Path] = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            files |= dict.fromkeys(file.keys(), path)
    if not files:
        raise UsageError(f"model.path={directory} holds no *.safetensors file")
    return files


class HostWeights:
    """The weights in host memory, fused per layer."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._files = _tensor_files(Path(spec.path)) if spec.path else None

    def tensors(self, layer: int) -> Weights:
        """The tensors of `layer`, or of ENDS: tied embeddings once."""
        fused, files = _parts(self._spec, layer), self._files
        if files is None:
            found = drawn(self._spec, layer)
        else:
            found = {name: self._read(files, name) for name in chain(*fused.values())}
        return {name: torch.cat([found[part] for part in parts]) for name, parts in fused.items()}

    def ends(self) -> Weights:
        """embed, norm and lm_head; tied embeddings share one tensor."""
        ends = self.tensors(ENDS)
        ends.setdefault("lm_head", ends["embed"])
        return ends

    def _read(self, files: Mapping[str, Path], name: str) -> torch.Tensor:
        if name not in files:
            raise UsageError(f"model {self._spec.name!r}: {self._spec.path} has no tensor {name}")
        with safe_open(files[name], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        if tuple(tensor.shape) != _shape(self._spec, name):
            raise UsageError(
                f"model {self._spec.name!r}: {name} has shape {tuple(tensor.shape)},"
                f" the config says {_shape(self._spec, name)}"
            )
        return tensor.to(torch_dtype(self._spec))


def save_checkpoint(spec: ModelSpec, directory: Path) -> None:
    """Writes the random weights of `spec` as config.json and model.safetensors, for any engine
    that reads the Hugging Face layout."""
    tensors: Weights = {}
    for index in (ENDS, *range(spec.num_layers)):
        tensors |= drawn(spec, index)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(hf_config(spec, bos=1, eos=2), indent=2))
