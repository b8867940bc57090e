"""engine=vllm +system=aqua: what a server is started with, and what is refused before it is."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from importlib import metadata
from typing import Any

import pytest

from harness.configuration.config import settings
from harness.configuration.options import plain, refuse_ignored
from harness.errors import UsageError
from harness.placement import Demand
from systems.aqua.config import AquaConfig
from systems.aqua.plugin import region
from systems.aqua.plugin.servers import AquaInVllm, gpu_of_lender, plugin
from tests.running import composed, hardware_profile, model_spec

NO_DEMAND = Demand({})


def config(*overrides: str, system: str = "aqua") -> AquaConfig:
    values = plain(composed(f"+system={system}", "engine=vllm", *overrides))["system"]
    found: AquaConfig = settings(values, AquaInVllm, "system")
    return found


def place(asked: AquaConfig, tp: int = 1) -> Any:
    models = {"default": replace(model_spec("tiny-llama"), tp=tp)}
    return AquaInVllm.place(asked, models, hardware_profile("local_x2"), NO_DEMAND)


def connector(asked: AquaConfig, url: str | None) -> dict[str, Any]:
    word, transfer = plugin(asked, url).arguments
    assert word == "--kv-transfer-config"
    extra: dict[str, Any] = json.loads(transfer)["kv_connector_extra_config"]
    return extra


def test_aqua_pages_to_its_producer_and_falls_back_to_fcfs() -> None:
    assert connector(config(), "http://127.0.0.1:5") == {
        "slice_iterations": 10, "copies": "gathered", "fcfs_when_in_dram": "any",
        "migrate_every_iterations": 10, "coordinator": "http://127.0.0.1:5", "device": "consumer",
    }  # fmt: skip


def test_vllm_cfs_pages_to_dram_block_by_block_and_has_no_coordinator() -> None:
    asked = config(system="vllm_cfs")
    with AquaInVllm.plugin(asked, place(asked)) as found:
        assert found == plugin(asked, None)
    extra = connector(asked, None)
    assert (extra["copies"], extra["fcfs_when_in_dram"]) == ("by_block", "never")
    assert "coordinator" not in extra


@pytest.mark.parametrize("tp", [1, 2])
def test_one_server_on_the_devices_of_its_ranks(tp: int) -> None:
    (placement,) = place(config(), tp=tp)
    assert (placement.devices, placement.model, placement.elastic) == (range(tp), "default", None)


@pytest.mark.parametrize(("visible", "gpu"), [(None, "3"), ("4,5,6,7", "7"), ("4,5,6", "")])
def test_a_lenders_gpu_is_behind_the_servers(visible: str | None, gpu: str) -> None:
    """The second of two ranks'. Without a GPU left it lends host memory."""
    assert gpu_of_lender(3, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == gpu
    assert plugin(config(), "http://127.0.0.1:5", 2).gpus_beside == 2


@pytest.mark.parametrize("version", ["0.31.2", "0.4.0", None])
def test_vllm_of_another_version_is_refused(
    version: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def installed(name: str) -> str:
        if version is None or name != "vllm":
            raise metadata.PackageNotFoundError
        return version

    monkeypatch.setattr(metadata, "version", installed)
    have = f"vLLM {version}" if version else "no vLLM"
    with pytest.raises(UsageError, match=f"^{have} is installed; AQUA's plug-in is for vLLM 0.32"):
        place(config())


def test_what_the_plug_in_does_not_do_is_refused() -> None:
    with pytest.raises(UsageError, match="variant=artifact; valid: paper"):
        place(config("system.variant=artifact"))
    with pytest.raises(UsageError, match="streamed by layer"):
        place(config(system="flexgen"))
    with pytest.raises(UsageError, match="max_num_seqs=600; valid in vLLM: at most"):
        place(config("system.max_num_seqs=600"))


@pytest.mark.parametrize(
    ("key", "refused"),
    [
        ("system.variants.paper.scheduler.slice_iterations=5", False),
        ("system.lender.idle_bytes=1000", False),
        ("system.copies=by_block", False),
        ("system.lender.every=5", True),
        ("system.consumer.kv_share=1", True),
        ("system.max_num_batched_tokens=64", True),  # of the lender's iterations
    ],
)
def test_keys_that_reach_neither_server_nor_lender_are_refused(key: str, refused: bool) -> None:
    whole = composed("+system=aqua", "engine=vllm")
    if not refused:
        refuse_ignored(whole.engine, whole.system, [key])
        return
    name = key.partition("=")[0]
    with pytest.raises(UsageError, match=f"^{name} is not read by engine=vllm"):
        refuse_ignored(whole.engine, whole.system, [key])


def test_a_lease_beyond_memory_is_refused_before_any_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[int] = []
    monkeypatch.setattr(region, "available_bytes", lambda: 1000)
    monkeypatch.setattr(os, "posix_fallocate", lambda _, __, size: taken.append(size))
    with pytest.raises(OSError, match="a lease of 1001 bytes is beyond the 1000 bytes available"):
        region.lend("lender", 1001)
    assert not taken
    region.lend("lender", 1000).end()
    assert taken == [1000]


def test_the_machine_says_how_much_memory_it_has() -> None:
    assert 1 << 20 < region.available_bytes() < 1 << 50
