"""AQUA (ASPLOS'25) on devices: consumers scheduled fairly, each with a lender that it pages to.

A pair is two instances of a node (`pair.py`), and pairs may share their lender (`group.py`); one
coordinator keeps the leases of all. Requests go to the pairs that serve their model, in turn.
README.md maps sections to files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from harness.clock import Event, Loop
from harness.cluster import Cluster
from harness.cost.hardware import Hardware
from harness.elastic.instance import ElasticInstance
from harness.elastic.kv_store import KvStore
from harness.model_spec import ModelSpec
from harness.placement import Demand, Placement
from harness.request import Request
from systems.aqua.config import AquaConfig
from systems.aqua.consumer import Consumer
from systems.aqua.coordinator.topology import Topology
from systems.aqua.group import Group, borrowers
from systems.aqua.leases import Leases, open_coordinator
from systems.aqua.lender import Lender
from systems.aqua.placement import groups_of, placed, split
from systems.aqua.plugin.servers import AquaInVllm
from systems.aqua.streaming import Streamer

ALIGN_BYTES = 4096  # of parts of DRAM


class Aqua:
    Config = AquaConfig
    in_vllm = AquaInVllm

    @staticmethod
    def place(
        config: AquaConfig, models: Mapping[str, ModelSpec], hardware: Hardware, demand: Demand
    ) -> list[Placement]:
        """Of each group the consumers' device(s), and the lender's beside them."""
        return placed(config, groups_of(config, models), models, hardware)

    def __init__(self, config: AquaConfig, *, loop: Loop, cluster: Cluster) -> None:
        if cluster.elastic is None:
            raise ValueError(
                "system aqua moves KV between devices, which this engine cannot do: choose "
                "engine=torch or engine=sim"
            )
        self._config, self._loop, self._cluster = config, loop, cluster
        self._elastic = cluster.elastic
        groups = split(config, self._elastic.instances)
        self._elastic.on_lost = self._lost
        self._leases = self._open_leases(groups)
        everyone = [consumer for consumers, _ in groups for consumer in consumers]
        self.groups = [
            Group(
                config, self._elastic, consumers, lender, self._leases,
                [self._dram(consumer, everyone) for consumer in consumers], loop, self._model_of,
                cluster.drop, orphan=self.submit,
            )
            for consumers, lender in groups
        ]  # fmt: skip
        self.pairs = [pair for group in self.groups for pair in group.pairs]
        self._num_submitted: Counter[str] = Counter()  # by model

    def _open_leases(
        self, groups: Sequence[tuple[Sequence[ElasticInstance], ElasticInstance]]
    ) -> Leases | None:
        """What all share, at their coordinator; nobody has joined yet."""
        if self._config.swap_space == "dram":
            return None
        places: dict[str, ElasticInstance] = {}
        producers = {}
        for consumers, lender in groups:
            for consumer, part in zip(consumers, borrowers(lender, consumers), strict=True):
                places |= {consumer.name: consumer, part.place: lender}
                producers[consumer.name] = part.place
        topology = Topology(
            memory_bytes={k: each.kv.num_pages * each.page_bytes for k, each in places.items()},
            nodes={name: each.memory.node for name, each in places.items()},
            producers=producers,
        )
        return Leases(open_coordinator(topology, self._config.coordinator, self._loop), producers)

    def _dram(self, own: ElasticInstance, consumers: list[ElasticInstance]) -> KvStore:
        """An equal part of its node's DRAM for each consumer."""
        beside = [each for each in consumers if each.memory.node == own.memory.node]
        size = self._config.dram_bytes // len(beside) // ALIGN_BYTES * ALIGN_BYTES
        if len(beside) == 1:
            size = self._config.dram_bytes
        at = beside.index(own) * size
        return self._elastic.dram_store(own.memory.node, size, own.layout, at_bytes=at)

    @property
    def consumer(self) -> Consumer | Streamer:
        """The first pair's, which most runs have alone."""
        return self.pairs[0].consumer

    @property
    def lender(self) -> Lender:
        return self.pairs[0].lender

    def submit(self, request: Request) -> None:
        """To the pairs that serve its model, in turn."""
        model = self._model_of(request)
        able = [pair for pair in self.pairs if pair.serves(model)]
        if not able:
            self._cluster.drop(request, f"all instances of {model} are lost")
            return
        turn = self._num_submitted[model]
        self._num_submitted[model] += 1
        able[turn % len(able)].submit(request)

    async def serve(self) -> None:
        for group in self.groups:
            await group.start()
        try:
            await self._loop.wait(Event(self._loop))
        finally:
            if self._leases is not None:
                self._leases.coordinator.close()

    def _lost(self, instance: ElasticInstance) -> None:
        next(group for group in self.groups if instance in group.instances).lost(instance)

    def _model_of(self, request: Request) -> str:
        asked = self._cluster.models.get(request.model)
        return self._elastic.instances[0].model.name if asked is None else asked.name
