"""The nodes' memory as pooled workers share it: weights in model caches, and KV.

Workers write and read the files; which model is cached, and which block is whose, is
`harness.pooled.host`'s.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.device.location import Location, dram, ssd
from harness.engine.launcher import Launcher
from harness.model_spec import ModelSpec
from harness.pooled.host import ModelCache
from harness.pooled.plan import PoolConfig


class HostMemory:
    """Each node's files of weights and KV. Where the model cache is too small for all models, each
    of them has a file on the SSD as well. A model that `harness.pooled.host.ModelCache` lets go of
    keeps its pages until the end: it costs a load from the SSD again, but frees nothing."""

    def __init__(
        self, launcher: Launcher, num_nodes: int, models: Mapping[str, ModelSpec],
        config: PoolConfig,
    ) -> None:  # fmt: skip
        cache = ModelCache(0, config.model_cache_bytes)
        cache.warm(models.values())
        warm = {name for name, spec in models.items() if spec in cache}
        self._cached = [set(warm) for _ in range(num_nodes)]  # whose bytes a node's cache has
        self._on_ssd = len(warm) < len(models)
        files: list[dict[str, int | None]] = []
        for node in range(num_nodes):
            memory, disk = dram(node), ssd(node)
            files.append({memory.file("kv"): config.host_kv_bytes})
            files[-1] |= {memory.file(name): spec.weight_bytes for name, spec in models.items()}
            if self._on_ssd:
                files[-1] |= {disk.file(name): None for name in models}
        launcher.open(files)

    def first_copies(self, model: str) -> list[str]:
        """The files that are to have the weights from the start."""
        nodes = range(len(self._cached))
        on_ssd = [ssd(node).file(model) for node in nodes if self._on_ssd]
        return on_ssd + [dram(node).file(model) for node in nodes if model in self._cached[node]]

    def source(self, model: str, place: Location) -> tuple[str, str | None]:
        """The file to read `model` from, and the one in the cache to fill with it meanwhile.

        A model is read from the SSD until another load has filled its place in the cache.
        """
        if model not in self._cached[place.node]:
            return ssd(place.node).file(model), dram(place.node).file(model)
        return place.file(model), None

    def filled(self, model: str, node: int) -> None:
        """A load has gone through the node's cache."""
        self._cached[node].add(model)
