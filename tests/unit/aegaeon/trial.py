"""Aegaeon on a small simulated pool, with requests, memory and switches of the test's choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from omegaconf import OmegaConf

from harness.configuration.config import build, settings
from harness.configuration.options import plain
from harness.placement import Demand
from harness.pooled.instance import PooledInstance
from harness.pooled.plan import device_weight_bytes
from harness.records.record import Recorder
from harness.request import Request
from harness.running import testbed
from harness.running.client import Client
from systems.aegaeon.system import Aegaeon
from tests import running
from tests.accounts import audit

model_spec, hardware_profile = cache(running.model_spec), cache(running.hardware_profile)


@cache
def system_node(overrides: tuple[str, ...]) -> Any:
    return plain(running.composed("+system=aegaeon", *overrides).system)


SPECS = {"narrow": "tiny-llama", "wide": "tiny-llama-wide", "deep": "tiny-llama-deep"}
SLAB_BYTES = 262144  # 4 KV blocks of narrow, 8 of wide, 1 of deep


class Trial:
    """`num_instances` pooled instances on nodes of `per_node`, each with room for two models and
    `kv_slabs` slabs of KV; models are named narrow-0, wide-1, deep-2, narrow-3, …

    watch: is given the system before anything arrives."""

    def __init__(
        self,
        *overrides: str,
        num_models: int = 4,
        num_instances: int = 3,
        per_node: int | None = None,
        kv_slabs: int = 400,
        pcie_bytes_per_s: float | None = None,
        host_kv_bytes: int = 2**30,
        watch: Callable[[Any], None] = lambda system: None,
    ) -> None:
        names = [f"{list(SPECS)[i % 3]}-{i}" for i in range(num_models)]
        self.models = {name: model_spec(SPECS[name.split("-")[0]]) for name in names}
        weights = 2 * max(device_weight_bytes(spec) for spec in self.models.values())
        self.hardware = replace(
            hardware_profile("local"),
            num_devices=num_instances,
            devices_per_node=per_node or num_instances,
            memory_bytes=weights + kv_slabs * SLAB_BYTES,
            host_memory_bytes=2**36,
        )
        if pcie_bytes_per_s is not None:
            self.hardware = replace(
                self.hardware,
                pcie_bytes_per_s=pcie_bytes_per_s,
                pcie_peak_bytes_per_s=pcie_bytes_per_s,
            )
        self._node = system_node(overrides)
        config = settings(self._node, Aegaeon, "system")
        self.placements = Aegaeon.place(config, self.models, self.hardware, Demand({}))
        self._engine = self._make_engine(host_kv_bytes)
        self._watch = watch
        self.recorder = Recorder([])
        self.system: Any = None
        self.pool: Sequence[PooledInstance] = ()

    def _make_engine(self, host_kv_bytes: int) -> Any:
        node = OmegaConf.load("conf/engine/sim.yaml")
        node.pool.memory_share = 1.0
        node.pool.min_kv_share = 0.001
        node.pool.slab_bytes = node.pool.host_slab_bytes = SLAB_BYTES
        node.pool.host_kv_bytes = host_kv_bytes
        return build(plain(node), "engine")

    def serve(self, requests: Sequence[Request], *, until: float | None = None) -> None:
        """Serves `requests` to the end, or to the time `until`, when everything dies."""
        self.recorder = Recorder(requests)
        with testbed.started(
            self._engine, self.models, self.hardware, self.placements, self.recorder
        ) as (cluster, loop):
            self.pool = cluster.pool
            self.system = build(self._node, "system", loop=loop, cluster=cluster)
            self._watch(self.system)
            client = Client(600, loop=loop, recorder=self.recorder, system=self.system)

            async def main() -> None:
                loop.spawn(self.system.serve(), name="system")
                if until is None:
                    await client.play(requests)
                else:
                    loop.spawn(client.play(requests), name="client")
                    await loop.sleep_until(until)

            loop.run(main())

    def statuses(self) -> set[str]:
        return {record.status for record in self.recorder.records.values()}

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.recorder.events if event["kind"] == kind]

    def assert_nothing_is_held(self) -> None:
        for instance in self.pool:
            assert instance.host.slabs.allocated_bytes() == 0
            for model in self.models:
                kv = instance.kv(model)
                audit(kv)
                assert kv.used_blocks == 0


def requests_of(*wanted: tuple[float, str, int, int]) -> list[Request]:
    """(arrival in seconds, model, prompt, output) each."""
    return [Request(i, *one) for i, one in enumerate(sorted(wanted))]
