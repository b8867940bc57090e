"""Loads models onto devices at a given rate, and estimates how long a load takes.

Storage-aware (ServerlessLLM §6.1): a model whose weights are in the node's memory comes over PCIe,
every other model from the node's SSDs. Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from harness.clock import Loop
from harness.cluster import Cluster
from harness.errors import UsageError
from harness.pooled.instance import PooledInstance

ALL_LOST = "every instance is lost"


class Loader:
    """Loads models.

    bytes_per_s: rate of each device of an instance; None: the rate of the link. Raises UsageError
    if the rate is not above 0, or above the link's. model_bytes: {architecture: bytes that its
    weights count}; other architectures count with their real bytes. restarts_engine: an inference
    engine is started for each load (Aegaeon §5.1); in place of the one that the device had.
    """

    def __init__(
        self,
        loop: Loop,
        cluster: Cluster,
        bytes_per_s: float | None,
        model_bytes: Mapping[str, float],
        *,
        restarts_engine: bool = False,
    ) -> None:
        link_bytes_per_s = cluster.profile.pcie_bytes_per_s
        if bytes_per_s is not None and not 0 < bytes_per_s <= link_bytes_per_s:
            raise UsageError(
                f"system.load_bytes_per_s={bytes_per_s:g} must be above 0 and at most the rate of "
                f"the hardware's link from host to device, {link_bytes_per_s:g}; this fits: "
                f"system.load_bytes_per_s={0.99 * link_bytes_per_s:.3g}"
            )
        self._loop, self._restarts_engine = loop, restarts_engine
        self._profile = cluster.profile
        self._bytes_per_s = bytes_per_s
        self._bytes = {
            name: model_bytes.get(spec.name, spec.weight_bytes) / spec.tp
            for name, spec in cluster.models.items()
        }

    def estimate_s(self, instance: PooledInstance, model: str) -> float:
        """Seconds that a load would take if it began now and nothing else used the links."""
        cached = instance.models[model] in instance.host.models
        link = self._profile.pcie_bytes_per_s if cached else self._profile.ssd_bytes_per_s
        return self._bytes[model] / min(link, self._bytes_per_s or inf)

    async def load(self, instance: PooledInstance, model: str) -> None:
        """Loads `model`. If the configured rate is slower than the links, it waits for the rest of
        that rate's time."""
        instance.begin_switch()
        if self._restarts_engine:
            await instance.restart()
        start_s = self._loop.now
        await instance.load(model)
        if self._bytes_per_s is not None:
            await self._loop.sleep_until(start_s + self._bytes[model] / self._bytes_per_s)
