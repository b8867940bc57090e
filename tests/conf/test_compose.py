"""Every YAML composes, and builds what it names: a broken option cannot land."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from harness.client import Client
from harness.cluster import ModelSpec
from harness.config import build, typed
from harness.hardware import Hardware
from harness.prepare import KEYS

CONF = Path(__file__).resolve().parents[2] / "conf"
BUILT_ALONE = ("engine", "tracking")  # what needs no running cluster and no data
NEEDED = {"openai": ["engine.url=http://127.0.0.1:1/v1"]}  # keys that have no default


def options(group: str) -> list[str]:
    found = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    assert found or group == "experiment", group
    return found


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def test_the_base_composes_and_has_only_known_keys() -> None:
    config = composed()
    assert set(config) <= set(KEYS)
    typed(config.client, Client.Config, "client")


@pytest.mark.parametrize("name", options("model"))
def test_models(name: str) -> None:
    spec = typed(composed(f"model={name}").model, ModelSpec, "model")
    assert spec.name == name
    assert spec.num_heads % spec.num_kv_heads == 0


@pytest.mark.parametrize("name", options("hardware"))
def test_hardware(name: str) -> None:
    assert typed(composed(f"hardware={name}").hardware, Hardware, "hardware").name == name


@pytest.mark.parametrize("group", BUILT_ALONE)
def test_groups_built_alone(group: str) -> None:
    for name in options(group):
        runtime = {"announce": print} if group == "tracking" else {}
        needed = NEEDED.get(name, [])
        build(composed("+system=vllm", f"{group}={name}", *needed)[group], group, **runtime)


@pytest.mark.parametrize("name", options("slo"))
def test_slos_compose(name: str) -> None:
    assert composed(f"slo={name}").slo.name


@pytest.mark.parametrize("name", options("system"))
def test_systems_resolve_in_every_engine(name: str) -> None:
    for engine in options("engine"):
        config = composed(f"+system='{name}'", f"engine={engine}")
        OmegaConf.resolve(config)


@pytest.mark.parametrize("name", options("workload"))
def test_workloads_compose(name: str) -> None:
    assert composed(f"+workload={name}").workload.name == name


@pytest.mark.parametrize("name", options("experiment"))
def test_experiments_compose_and_name_a_system_and_a_workload(name: str) -> None:
    config = composed(f"+experiment={name}")
    assert config.get("system") is not None
    assert config.get("workload") is not None
