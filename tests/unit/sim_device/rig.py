"""Simulated devices of a node of H800s whose links and copies have no latency."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from harness.clock import Event, VirtualLoop
from harness.configuration.config import typed
from harness.configuration.options import plain
from harness.cost.hardware import Hardware
from harness.cost.model import CostModel
from harness.device.location import hbm
from harness.device.topology import Topology
from harness.engine_api import Experiment
from harness.pooled.device import KvCopy
from harness.pooled.slab import Run
from harness.records.record import Recorder
from harness.sim.config import SimPoolConfig
from harness.sim.device import SimDevice
from harness.sim.network import Network
from tests.running import hardware_profile, model_spec

H800 = replace(
    hardware_profile("h800x16"), pcie_latency_s=0.0, nic_latency_s=0.0, ssd_latency_s=0.0
)
MODELS = {"7b": model_spec("qwen2.5-7b"), "13b": model_spec("llama2-13b")}


class Rig:
    """Devices of `tp` GPUs each, all over a cluster of `hardware`."""

    def __init__(self, hardware: Hardware = H800, tp: int = 1, **pool: Any) -> None:
        node = OmegaConf.load("conf/engine/sim.yaml").pool
        config = typed(plain(OmegaConf.merge(node, pool)), SimPoolConfig, "engine.pool")
        self.models = {name: replace(spec, tp=tp) for name, spec in MODELS.items()}
        self.loop = VirtualLoop()
        network = Network(self.loop, Topology(hardware))
        experiment = Experiment(
            self.loop, Recorder([]), self.models, hardware, run_dir=Path(), seed=0, placements=[],
            scheduler={}, announce=print,
        )  # fmt: skip
        gpus = [hbm(n, d) for n in range(2) for d in range(hardware.devices_per_node)]
        self.devices = [
            SimDevice(
                f"sim-{i}", gpus[i : i + tp], config, 16, experiment,
                lambda spec: CostModel(spec, hardware), network,
            )
            for i in range(0, len(gpus), tp)
        ]  # fmt: skip

    def copied(
        self, begin: Callable[[KvCopy, Callable[[bool], None]], None], copy: KvCopy
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        """A job: begins the copy by `begin`, and is over with it."""

        async def job() -> None:
            over = Event(self.loop)
            begin(copy, lambda complete: over.set())
            await self.loop.wait(over)

        return job

    def times(self, *jobs: Callable[[], Coroutine[Any, Any, Any]]) -> list[float]:
        """When each of `jobs`, all begun at once, is over; seconds."""
        ends = [0.0] * len(jobs)

        async def one(i: int, job: Callable[[], Coroutine[Any, Any, Any]]) -> None:
            await job()
            ends[i] = self.loop.now

        async def main() -> None:
            tasks = [self.loop.spawn(one(i, job), name=str(i)) for i, job in enumerate(jobs)]
            for task in tasks:
                await self.loop.wait(task.finished)

        self.loop.run(main())
        return ends


def kv(blocks: int, node: int = 0, model: str = "13b") -> KvCopy:
    """13b: 12.5 MiB a block, over all devices of an instance."""
    run = Run(0, blocks, used=True)
    return KvCopy(model, node, blocks, [run], [run])
