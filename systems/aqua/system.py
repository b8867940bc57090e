"""AQUA (ASPLOS'25) on devices: consumers scheduled fairly, each with a lender that it pages to.

A pair is two instances on neighbouring devices of a node (`pair.py`); one coordinator keeps the
leases of all. Requests go to the pairs that serve their model, in turn. README.md maps sections to
files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from harness.clock import Event, Loop
from harness.cluster import Cluster
from harness.cost.hardware import Hardware
from harness.device.elastic import ElasticInstance
from harness.device.kv_store import KvStore
from harness.model_spec import ModelSpec
from harness.placement import Demand, Placement
from harness.request import Request
from systems.aqua.config import AquaConfig
from systems.aqua.consumer import Consumer
from systems.aqua.coordinator.client import Remote
from systems.aqua.coordinator.process import CoordinatorProcess
from systems.aqua.coordinator.topology import Topology
from systems.aqua.leases import Leases, open_coordinator
from systems.aqua.lender import Lender
from systems.aqua.pair import Pair
from systems.aqua.placement import pairs_of, placed
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
        """Of each pair the consumer's device(s), and its neighbour's."""
        return placed(config, pairs_of(config, models), models, hardware)

    def __init__(self, config: AquaConfig, *, loop: Loop, cluster: Cluster) -> None:
        if cluster.elastic is None:
            raise ValueError(
                "system aqua moves KV between devices, which this engine cannot do: choose "
                "engine=torch or engine=sim"
            )
        self._config, self._loop, self._cluster = config, loop, cluster
        self._elastic = cluster.elastic
        instances = self._elastic.instances
        both = list(zip(instances[::2], instances[1::2], strict=True))  # as `placed`
        self._elastic.on_lost = self._lost
        self._leases = self._open_leases(both)
        self.pairs = [
            Pair(
                config, self._elastic, consumer, lender, self._leases,
                self._dram(number, [each for each, _ in both]), loop, self._model_of,
                cluster.drop, orphan=self.submit,
            )
            for number, (consumer, lender) in enumerate(both)
        ]  # fmt: skip
        self._num_submitted: Counter[str] = Counter()  # by model

    def _open_leases(self, pairs: list[tuple[ElasticInstance, ElasticInstance]]) -> Leases | None:
        """What all share, at their coordinator; nobody has joined yet."""
        if self._config.swap_space == "dram":
            return None
        every = [instance for pair in pairs for instance in pair]
        producers = {consumer.name: lender.name for consumer, lender in pairs}
        topology = Topology(
            memory_bytes={each.name: each.kv.num_pages * each.page_bytes for each in every},
            nodes={each.name: each.memory.node for each in every},
            producers=producers,
        )
        return Leases(open_coordinator(topology, self._config.coordinator, self._loop), producers)

    def _dram(self, number: int, consumers: list[ElasticInstance]) -> KvStore:
        """An equal part of its node's DRAM for each consumer."""
        own = consumers[number]
        beside = [i for i, each in enumerate(consumers) if each.memory.node == own.memory.node]
        size = self._config.dram_bytes // len(beside) // ALIGN_BYTES * ALIGN_BYTES
        if len(beside) == 1:
            size = self._config.dram_bytes
        at = beside.index(number) * size
        return self._elastic.dram_store(own.memory.node, size, own.layout, at_bytes=at)

    @property
    def consumer(self) -> Consumer | Streamer:
        """The first pair's, which most runs have alone."""
        return self.pairs[0].consumer

    @property
    def lender(self) -> Lender:
        return self.pairs[0].lender

    @property
    def coordinator_process(self) -> CoordinatorProcess | None:
        """None: the coordinator is embedded, or there is none."""
        client = None if self._leases is None else self._leases.coordinator
        return client.process if isinstance(client, Remote) else None

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
        for pair in self.pairs:
            await pair.start()
        try:
            await self._loop.wait(Event(self._loop))
        finally:
            if self._leases is not None:
                self._leases.coordinator.close()

    def _lost(self, instance: ElasticInstance) -> None:
        next(pair for pair in self.pairs if instance in pair.instances).lost(instance)

    def _model_of(self, request: Request) -> str:
        asked = self._cluster.models.get(request.model)
        return self._elastic.instances[0].model.name if asked is None else asked.name
