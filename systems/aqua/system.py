"""AQUA (ASPLOS'25) on devices: consumers scheduled fairly, each with a lender that it pages to.

A pair is two instances of a node (`pair.py`); one producer's device lends to one consumer's
(section 5), so a lender that is a tensor-parallel group may have several consumers, and a consumer
that is one several lenders. One coordinator
keeps the leases of all. Requests go to the pairs that serve their model, in turn. README.md maps
sections to files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from harness.clock import Event, Loop
from harness.cluster import Cluster
from harness.cost.hardware import Hardware
from harness.device.processes import Processes
from harness.device.victim import Victim
from harness.elastic.instance import ElasticInstance
from harness.elastic.kv_region import KvStore
from harness.model_spec import ModelSpec
from harness.placement import Demand, Placement
from harness.request import Request
from systems.aqua.config import AquaConfig
from systems.aqua.coordinator.client import Remote, open_coordinator
from systems.aqua.coordinator.topology import Device, Topology
from systems.aqua.leases import Leases
from systems.aqua.lender import Borrowing, Lender, borrowings
from systems.aqua.pair import Outside, Pair
from systems.aqua.placement import placed, split
from systems.aqua.plugin.servers import AquaInVllm
from systems.aqua.shard_leases import ShardLeases
from systems.aqua.swap_space import SwapSpace
from systems.serving.elastic import elastic_of

ALIGN_BYTES = 4096  # alignment of parts of DRAM
BEATS = 4  # heartbeats within the coordinator's timeout


class Aqua:
    Config = AquaConfig
    in_vllm = AquaInVllm

    @staticmethod
    def place(
        config: AquaConfig, models: Mapping[str, ModelSpec], hardware: Hardware, demand: Demand
    ) -> list[Placement]:
        """The placement of each group: the consumers' device(s), and the lender's beside them."""
        return placed(config, models, hardware)

    def __init__(self, config: AquaConfig, *, loop: Loop, cluster: Cluster) -> None:
        self._config, self._loop, self._cluster = config, loop, cluster
        why = "aqua moves KV between devices, which this engine cannot do"
        self._elastic = elastic_of(cluster, why)
        groups = split(config, self._elastic.instances)
        self._elastic.on_lost = self._lost
        borrowed = [borrowings(*group) for group in groups]
        self._leases = self._open_leases([x for group in borrowed for own in group for x in own])
        everyone = [consumer for consumers, _ in groups for consumer in consumers]
        outside = Outside(self._model_of, cluster.drop, orphan=self.submit)
        self._groups: list[tuple[list[Pair], list[Lender]]] = []
        for number, (consumers, producers) in enumerate(groups):
            pairs: list[Pair] = []
            told = config.pairs[number].lenders if config.pairs else None
            lenders = [
                Lender(
                    config, self._elastic, producer, own, self._leases, loop,
                    partial(self._lender_died, pairs), lends,
                )
                for producer, own, lends in zip(
                    producers, borrowed[number], told or (None,), strict=True
                )
            ]  # fmt: skip
            for k, consumer in enumerate(consumers):
                dram = self._dram(consumer, everyone)
                own_leases = self._leases_of(consumer, lenders)
                swap = SwapSpace(config, self._elastic, consumer, own_leases, dram)
                places = [lender.borrowers[k].place for lender in lenders]
                pair = Pair(config, consumer, swap, lenders, places, self._leases, outside, loop)
                pairs.append(pair)
            self._groups.append((pairs, lenders))
        self.pairs = [pair for pairs, _ in self._groups for pair in pairs]
        self._num_submitted: Counter[str] = Counter()  # requests by model

    def _open_leases(self, borrowed: Sequence[Borrowing]) -> Leases:
        """Opens the leases that all share, at their coordinator; nobody has joined yet."""
        own = self._config.coordinator
        beat_s = own.heartbeat_timeout_s / BEATS
        if self._config.swap_space == "dram":
            return Leases(None, {}, self._loop, beat_s)
        at = {each.borrower: each.consumer for each in borrowed}
        at |= {each.place: each.lender for each in borrowed}
        producers = {each.borrower: each.place for each in borrowed}
        devices = {
            name: Device(each.memory.node, each.kv.num_pages * each.page_bytes)
            for name, each in at.items()
        }
        coordinator = open_coordinator(Topology(devices, producers), own, self._loop)
        return Leases(coordinator, producers, self._loop, beat_s)

    @property
    def parts(self) -> dict[str, Victim]:
        """The coordinator, where it is a process."""
        at = self._leases.coordinator
        if not isinstance(at, Remote):
            return {}
        process = at.process
        return {"coordinator": Processes("coordinator", self._loop, lambda: [process.pid])}

    def _leases_of(
        self, consumer: ElasticInstance, lenders: Sequence[Lender]
    ) -> Leases | ShardLeases:
        """The leases of this consumer, of one lender or of one for each of its shards."""
        if len(lenders) == 1:
            return self._leases
        places = [each.borrower for lender in lenders for each in lender.borrowers]
        return ShardLeases(
            self._leases, places, lambda stores: self._elastic.beside(stores, consumer.layout)
        )

    def _dram(self, own: ElasticInstance, consumers: list[ElasticInstance]) -> KvStore:
        """The DRAM of each consumer, an equal part of its node's."""
        beside = [each for each in consumers if each.memory.node == own.memory.node]
        size = self._config.dram_bytes
        if len(beside) > 1:
            size = size // len(beside) // ALIGN_BYTES * ALIGN_BYTES
        at = beside.index(own) * size
        return self._elastic.dram_store(own.memory.node, size, own.layout, at_bytes=at)

    def submit(self, request: Request) -> None:
        """Submits the request to the pairs that serve its model, in turn."""
        model = self._model_of(request)
        able = [pair for pair in self.pairs if pair.serves(model)]
        if not able:
            self._cluster.drop(request, f"all instances of {model} are lost")
            return
        turn = self._num_submitted[model]
        self._num_submitted[model] += 1
        able[turn % len(able)].submit(request)

    async def serve(self) -> None:
        try:
            for pairs, lenders in self._groups:
                await self._begin(pairs, lenders)
            await self._loop.wait(Event(self._loop))
        finally:
            self._leases.close()

    async def _begin(self, pairs: Sequence[Pair], lenders: Sequence[Lender]) -> None:
        for pair in pairs:
            consumer = pair.consumer.instance
            self._elastic.take(consumer, "consumer")
            await pair.consumer.swap.leases.join(consumer.name, consumer)
        for lender in lenders:
            self._elastic.take(lender.instance, "lender")
            for part in lender.borrowers:
                await self._leases.join(part.place, lender.instance)
            self._loop.spawn(lender.serve(), name=f"lender {lender.instance.name}")
        for pair in pairs:
            name = f"consumer {pair.consumer.instance.name}"
            self._loop.spawn(pair.consumer.serve(), name=name)

    def _lost(self, instance: ElasticInstance) -> None:
        for pair in self.pairs:
            if instance in pair.instances:
                pair.lost(instance)

    @staticmethod
    def _lender_died(pairs: Sequence[Pair], left: Sequence[Request]) -> None:
        """Hands what the dead lender was to serve to its consumers, in turn."""
        for number, pair in enumerate(pairs):
            pair.take_over(left[number :: len(pairs)])

    def _model_of(self, request: Request) -> str:
        asked = self._cluster.models.get(request.model)
        return self._elastic.instances[0].model.name if asked is None else asked.name
