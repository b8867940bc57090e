"""How long it takes to bring a model to a device, and bringing it there at a given rate.

Storage-aware (ServerlessLLM §6.1): a model whose weights are in the node's memory comes over PCIe,
any other one from the node's SSDs. Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from harness.clock import Loop
from harness.cluster import Cluster
from harness.device.pooled import PooledInstance
from harness.errors import UsageError


class Loader:
    """`bytes_per_s`: of each device of an instance, however fast its link is; None: the link's.
    `model_bytes`: what the weights count by the architecture's name, where not what they are."""

    def __init__(
        self,
        loop: Loop,
        cluster: Cluster,
        bytes_per_s: float | None,
        model_bytes: Mapping[str, float],
    ) -> None:
        link_bytes_per_s = cluster.profile.pcie_bytes_per_s
        if bytes_per_s is not None and not 0 < bytes_per_s <= link_bytes_per_s:
            raise UsageError(
                f"system.load_bytes_per_s={bytes_per_s:g} must be above 0 and at most the rate of "
                f"the hardware's link from host to device, {link_bytes_per_s:g}; this fits: "
                f"system.load_bytes_per_s={0.99 * link_bytes_per_s:.3g}"
            )
        self._loop = loop
        self._profile = cluster.profile
        self._bytes_per_s = bytes_per_s
        self._bytes = {
            name: model_bytes.get(spec.name, spec.weight_bytes) / spec.tp
            for name, spec in cluster.models.items()
        }

    def estimate_s(self, instance: PooledInstance, model: str) -> float:
        """If it began now and nobody else used the links."""
        cached = instance.models[model] in instance.host.models
        link = self._profile.pcie_bytes_per_s if cached else self._profile.ssd_bytes_per_s
        return self._bytes[model] / min(link, self._bytes_per_s or inf)

    async def load(self, instance: PooledInstance, model: str) -> None:
        """Never faster than the links: the rest of the time of a slower rate is waited for."""
        start_s = self._loop.now
        instance.begin_switch()
        await instance.load(model)
        if self._bytes_per_s is not None:
            await self._loop.sleep_until(start_s + self._bytes[model] / self._bytes_per_s)
