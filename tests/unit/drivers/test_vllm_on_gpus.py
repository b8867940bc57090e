"""What engine=vllm asks where the hardware profile is a GPU's. Starts no server."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from harness.drivers.vllm import VllmEngine
from harness.engine.site import HERE
from harness.errors import UsageError
from tests.integration.test_vllm_engine import experiment
from tests.unit.drivers.test_vllm_values import FIELDS


@pytest.mark.parametrize(("device", "gpus"), [("cpu", 0), ("H100-SXM5-80GB", 1)])
def test_gpus_of_nodes_are_asked_of_ray_and_not_of_this_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str, gpus: int
) -> None:
    def asked(stack: ExitStack, num_nodes: int, addresses: None, gpus: int) -> None:
        raise UsageError(f"{num_nodes} nodes with {gpus} GPUs")

    monkeypatch.setattr("harness.drivers.vllm.ray_launcher", asked)
    of_two = experiment(tmp_path, [], 2)
    on = replace(of_two, hardware=replace(of_two.hardware, device=device))
    on_ray = VllmEngine(VllmEngine.Config(**FIELDS, cluster="ray"))
    with pytest.raises(UsageError, match=f"2 nodes with {gpus} GPUs"), on_ray.start(on):
        pass


@pytest.mark.parametrize(
    ("device", "share"), [("cpu", "kv-cache-memory-bytes"), ("H100", "gpu-memory-utilization")]
)
def test_a_servers_memory_is_a_share_of_a_gpus_and_bytes_of_a_cpus(
    tmp_path: Path, device: str, share: str
) -> None:
    asked = experiment(tmp_path, [], 1)
    on = replace(asked, hardware=replace(asked.hardware, device=device))
    made = VllmEngine(VllmEngine.Config(**FIELDS))._plans(on, list(asked.models), None, [HERE])
    words = made[0].command(8000)
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    assert [flag for flag in flags if "memory" in flag] == [f"--{share}"]
