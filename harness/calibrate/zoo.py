"""The models and devices of `conf/`, by name, as a run would compose them."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from harness.configuration.config import typed
from harness.configuration.options import plain
from harness.cost.hardware import Hardware
from harness.errors import UsageError
from harness.model_spec import ModelSpec

CONF = Path(__file__).resolve().parents[2] / "conf"
SHORT_DEVICE = {"a100", "a800", "h100", "h800", "h200", "b200"}  # named without _sxm, they are SXM


def names(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


@cache
def model_name(name: str) -> str:
    """The zoo's name for `name`, which may be a public profile's (llama2_7b, qwen_7b_chat) or one
    with its maker (meta-llama/Llama-3.1-8B-Instruct)."""
    plain = name.lower().rpartition("/")[2].replace("_", "-")
    for dotted in (name, plain, plain.replace("1-5", "1.5").replace("2-5", "2.5")):
        found = _public("models").get(dotted, dotted)
        if found in names("model"):
            return found
    raise UsageError(f"model {name!r} is unknown; valid: {', '.join(names('model'))}")


@cache
def device_name(name: str) -> str:
    """The zoo's name for `name`, which may be short (A100) or a datasheet's (A100-SXM4-80GB)."""
    plain = name.lower().replace("-", "_").replace(" ", "_")
    plain = f"{plain}_sxm" if plain in SHORT_DEVICE else _public("devices").get(plain, plain)
    for known in names("hardware/device"):
        if plain in (known, device(known).device.lower().replace("-", "_")):
            return known
    raise UsageError(f"device {name!r} is unknown; valid: {', '.join(names('hardware/device'))}")


@cache
def _public(kind: str) -> dict[str, str]:
    """The zoo's name by another that is public."""
    found: dict[str, str] = node(Path(__file__).with_name("public_names.yaml"))[kind]
    return found


def node(path: str | Path, **changes: Any) -> dict[str, Any]:
    """The YAML file `path` of conf/, or anywhere, as it is written but for `changes`."""
    loaded = OmegaConf.load(CONF / path)
    if not isinstance(loaded, DictConfig):
        raise ValueError(f"{path} holds a list")
    loaded.update(changes)
    return plain(loaded)


@cache
def model(name: str) -> ModelSpec:
    return typed(node(f"model/{name}.yaml"), ModelSpec, "model")


def sharded(name: str, tp: int) -> ModelSpec:
    try:
        return replace(model(name), tp=tp)
    except ValueError as error:
        raise UsageError(f"model {name}: {error}") from error


@cache
def device(name: str) -> Hardware:
    """One node of device `name`, with its calibration."""
    found = _composed(f"hardware/device/{name}").hardware.device
    OmegaConf.set_struct(found, False)
    found.update(name=name, num_devices=found.devices_per_node, source="datasheet")
    return typed(plain(found), Hardware, f"hardware/device/{name}")


def hardware(name: str) -> Hardware:
    """The profile that hardware=`name` chooses. Not cached: `measure` writes some of them."""
    found = _composed(f"hardware/{name}").hardware
    return typed(plain(found), Hardware, f"hardware/{name}")


def _composed(name: str) -> DictConfig:
    known = GlobalHydra.instance().is_initialized()  # of conf/, by who composes a run
    with nullcontext() if known else initialize_config_dir(str(CONF), version_base="1.3"):
        composed: DictConfig = compose(name)
        return composed
