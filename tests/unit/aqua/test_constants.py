"""conf/system/aqua/constants.yaml: every constant fits the part that it is for."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from harness.configuration.config import typed
from harness.configuration.options import plain
from systems.aqua.coordinator.coordinator import check_timeout
from systems.aqua.informer import InformerConfig
from systems.aqua.paging import FALLBACKS
from systems.aqua.placer.assignment import Servers
from systems.aqua.profiler.stable_rate import RateConfig
from systems.aqua.prompt import Limits
from tests.running import ROOT


def constants() -> Any:
    node = OmegaConf.load(ROOT / "conf/system/aqua/constants.yaml")
    assert isinstance(node, DictConfig)
    return plain(node)


@pytest.mark.parametrize("variant", ["paper", "artifact"])
def test_the_parts_take_their_constants(variant: str) -> None:
    every = constants()
    own = every["variants"][variant]
    typed(every["informer"] | own["informer"], InformerConfig, "informer")
    scheduler = every["scheduler"] | own["scheduler"]
    assert scheduler["fcfs_when_in_dram"] in FALLBACKS
    Limits(
        batch_tokens=scheduler["batch_tokens"],
        slice_iterations=scheduler["slice_iterations"],
        num_blocks=1,
        block_tokens=scheduler["block_tokens"],
        max_prompts=1,
    )
    rates = {key: every["profiler"][key] for key in RateConfig.__slots__}
    typed(rates, RateConfig, "profiler")
    assert every["profiler"]["planned_burst"] in every["profiler"]["burst_factors"]
    Servers(num_servers=1, gpus_per_server=8, gpu_memory_bytes=every["placer"]["gpu_memory_bytes"])
    check_timeout(every["coordinator"]["heartbeat_timeout_s"])


def test_the_artifact_is_as_its_source_has_it() -> None:
    own = constants()["variants"]["artifact"]
    assert own["scheduler"]["slice_iterations"] == 5
    assert (own["informer"]["reclaim_at_pending"], own["informer"]["offer_at_pending"]) == (10, 2)
    assert own["informer"]["every_s"] == 4.0
