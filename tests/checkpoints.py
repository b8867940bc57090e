"""Checkpoints in the Hugging Face layout with the random weights of a model."""

import json
from itertools import chain
from pathlib import Path

from safetensors.torch import save_file

from harness.configuration.checkpoint import hf_config
from harness.engine.weights import ENDS, RandomSource, Weights, parts_of
from harness.model_spec import ModelSpec


def save_checkpoint(spec: ModelSpec, directory: Path) -> None:
    """Writes config.json and model.safetensors, for any engine that reads this layout."""
    source = RandomSource(spec)
    tensors: Weights = {}
    for index in (ENDS, *range(spec.num_layers)):
        tensors |= source.parts(index, list(chain(*parts_of(spec, index).values())))
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(hf_config(spec, bos=1, eos=2), indent=2))
