"""A decoder's weights, layer by layer: read from safetensors or drawn from a seed.

A layer is a dict of host tensors, fused as `harness.model_family` says. Layer i of a random model
depends on (seed, i) alone, so any layer can be made by itself.

Knows nothing of devices: `runner.py` copies layers to where they run.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import torch
from safetensors import safe_open

from harness.errors import UsageError
from harness.model_family import Parts, family_of
from harness.model_spec import ModelSpec, end_parts, layer_parts, part_shape

Weights = dict[str, torch.Tensor]

ENDS = -1  # in place of a layer's index: what stands before the first layer and after the last


def torch_dtype(spec: ModelSpec) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return dtype


def parts_of(spec: ModelSpec, layer: int) -> Parts:
    """Our names of the tensors of `layer`, or of ENDS, and Hugging Face's of its parts."""
    if layer == ENDS:
        return end_parts(spec)
    prefix = f"{family_of(spec.family).prefix}.{layer}."
    return {name: tuple(prefix + p for p in parts) for name, parts in layer_parts(spec).items()}


class RandomSource:
    """Parts drawn with variance 1/fan_in: activations keep their size and attention is neither
    uniform nor one-hot at any width, so that a wrong position or mask changes the tokens."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec

    def parts(self, index: int, names: Sequence[str]) -> Weights:
        """The tensors `names` of layer `index`, drawn in this fixed order."""
        generator = torch.Generator().manual_seed((self._spec.seed << 16) + index + 1)
        return {name: self._draw(name, generator) for name in names}

    def _draw(self, name: str, generator: torch.Generator) -> torch.Tensor:
        shape = part_shape(self._spec, name)
        std: float = shape[-1] ** -0.5
        if name.endswith("bias"):
            std = 0.1
        elif "norm" in name:
            return torch.ones(shape, dtype=torch_dtype(self._spec))
        elif "embed_positions" in name:
            std *= 4  # ReLUs give much the same at all places
        elif "embed_tokens" in name and not self._spec.tie_embeddings:
            std = 1.0  # such a head would pick the token that it is given
        return (torch.randn(shape, generator=generator) * std).to(torch_dtype(self._spec))


class CheckpointSource:
    """Parts read from the safetensors files of a Hugging Face model directory."""

    def __init__(self, spec: ModelSpec, directory: Path) -> None:
        self._spec = spec
        self._files = _tensor_files(directory)

    def parts(self, index: int, names: Sequence[str]) -> Weights:
        return {name: self._read(name) for name in names}

    def _read(self, name: str) -> torch.Tensor:
        if name not in self._files:
            raise UsageError(f"model {self._spec.name!r}: {self._spec.path} has no tensor {name}")
        with safe_open(self._files[name], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        if tuple(tensor.shape) != part_shape(self._spec, name):
            raise UsageError(
                f"model {self._spec.name!r}: {name} has shape {tuple(tensor.shape)},"
                f" the config says {part_shape(self._spec, name)}"
            )
        return tensor.to(torch_dtype(self._spec))


def _tensor_files(directory: Path) -> dict[str, Path]:
    """Which safetensors file of `directory` holds each tensor."""
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
        self._source: RandomSource | CheckpointSource = (
            CheckpointSource(spec, Path(spec.path)) if spec.path else RandomSource(spec)
        )

    def tensors(self, layer: int) -> Weights:
        """The tensors of `layer`, or of ENDS: tied embeddings once."""
        fused = parts_of(self._spec, layer)
        found = self._source.parts(layer, list(chain(*fused.values())))
        return {name: torch.cat([found[part] for part in parts]) for name, parts in fused.items()}

    def ends(self) -> Weights:
        """embed, norm and lm_head; tied embeddings share one tensor."""
        ends = self.tensors(ENDS)
        ends.setdefault("lm_head", ends["embed"])
        return ends
