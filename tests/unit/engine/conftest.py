"""Checkpoints and reference models of the supported families, made by transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from harness.configuration.checkpoint import hf_config
from harness.engine.hf_config import check_config
from harness.model_spec import ModelSpec
from tests.unit.engine.serving import VARIANTS, spec_like
from tests.unit.engine.stand_in_cuda import Calls, a_gpu

# These models are too small to share out, and OpenMP threads that wait for each other's cores on
# a busy machine take minutes for what one thread does in a second.
torch.set_num_threads(1)


class Family(NamedTuple):
    spec: ModelSpec  # with the checkpoint's path
    reference: Any  # the transformers model


def reference_model(spec: ModelSpec, **changes: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    wide = 0.15  # initial weights large enough for attention to depend on positions
    changes = {"initializer_range": wide, "init_std": wide, **changes}
    config = AutoConfig.for_model(**hf_config(spec, None, None) | changes)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for parameter in model.parameters():  # biases and norms start at 0 and 1: make them matter
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=float(parameter.detach().mean()), std=0.1)
    return model.eval()


@pytest.fixture(scope="session", params=[*VARIANTS, "mistral"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    directory: Path = tmp_path_factory.mktemp(request.param)
    spec = spec_like(directory, **VARIANTS.get(request.param, {}))
    of_mistral = {"model_type": "mistral", "sliding_window": None}
    model = reference_model(spec, **(of_mistral if request.param == "mistral" else {}))
    model.save_pretrained(directory)
    check_config(spec, directory)
    return Family(spec, model)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """What is asked of a stand-in for torch.cuda."""
    with a_gpu(monkeypatch) as made:
        yield made
