"""AQUA (ASPLOS'25) on devices: a consumer scheduled fairly, and a lender whose memory it pages to.

Two instances of one model on neighbouring devices of a node. Of every `lender.every` requests one
is the lender's, which serves FCFS; the rest are the consumer's. README.md maps sections to files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path

from harness.clock import Event, Loop
from harness.cluster import Cluster
from harness.config import typed
from harness.cost.hardware import Hardware
from harness.device.elastic import ElasticInstance
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.placement import Demand, Elastic, Placement
from harness.request import Request
from systems.aqua.config import AquaConfig
from systems.aqua.consumer import Consumer
from systems.aqua.coordinator.client import Remote
from systems.aqua.coordinator.process import CoordinatorProcess
from systems.aqua.coordinator.topology import Topology
from systems.aqua.layered_streaming import LayeredStreamer
from systems.aqua.leases import Leases, beat, open_coordinator
from systems.aqua.lender import Lender
from systems.aqua.plugin.servers import AquaInVllm
from systems.aqua.profiler.profile import read_profile
from systems.aqua.prompt import Limits
from systems.aqua.streaming import Streamer
from systems.aqua.swap_space import SwapSpace
from systems.aqua.turn import Turn
from systems.baselines import vllm

BEATS = 4  # heartbeats within the coordinator's timeout

Server = Consumer | Streamer | Lender


def lender_model(config: AquaConfig) -> ModelSpec | None:
    """None: it has the consumer's."""
    if config.lender.model is None:
        return None
    found: ModelSpec = typed(config.lender.model, ModelSpec, "system.lender.model")
    return found


class Aqua:
    Config = AquaConfig
    in_vllm = AquaInVllm

    @staticmethod
    def place(
        config: AquaConfig, models: Mapping[str, ModelSpec], hardware: Hardware, demand: Demand
    ) -> list[Placement]:
        """The consumer's device(s), and its neighbour's."""
        specs = {spec.name: spec for spec in models.values()}
        lent = lender_model(config)
        own = [spec for spec in specs.values() if lent is None or spec.name != lent.name]
        if len(own) != 1:
            named = "" if lent is None else f" besides the lender's {lent.name}"
            raise UsageError(
                f"a consumer serves one model, and {len(own)} are asked for{named}; set "
                "model_set=one, or system.lender.model to the other"
            )
        both = [own[0], lent or own[0]]
        needed = sum(spec.tp for spec in both)
        within = min(hardware.devices_per_node, hardware.num_devices)
        if needed > within:
            raise UsageError(
                f"consumer and lender need {needed} devices of one node for model.tp="
                f"{both[0].tp}, and hardware={hardware.name} has {within}; memory is lent within a "
                "node"
            )
        starts = (0, both[0].tp)
        names = {spec.name: name for name, spec in models.items()}
        return [
            Placement(
                devices=range(at, at + spec.tp), model=names.get(spec.name, spec.name),
                own=None if spec.name in names else spec,
                # KV that streams does so by layer
                elastic=Elastic(page_layers=1 if config.consumer.streams and not at else None),
            )
            for at, spec in zip(starts, both, strict=True)
        ]  # fmt: skip

    def __init__(self, config: AquaConfig, *, loop: Loop, cluster: Cluster) -> None:
        if cluster.elastic is None:
            raise ValueError(
                "system aqua moves KV between devices, which this engine cannot do: choose "
                "engine=torch or engine=sim"
            )
        self._config, self._loop, self._cluster = config, loop, cluster
        self._elastic = cluster.elastic
        consumer, lender = self._elastic.instances
        self._elastic.on_lost = self._lost
        self._leases = self._open_leases(consumer, lender)
        self.consumer = self._make_consumer(consumer)
        self.lender = self._make_lender(lender, consumer)
        if self._leases is not None:
            self._leases.on_change.append(self.lender.nudge)
        self._num_submitted = 0
        self._lender_blocks = lender.kv.num_blocks
        # Of the longest request that both can serve, before any is lent.
        self._blocks = self._kv_blocks(consumer)
        if isinstance(self.consumer, Streamer):
            self._blocks = self.consumer.num_blocks
        elif lender.model.name == consumer.model.name:
            self._blocks = min(self._blocks, lender.kv.num_blocks)

    def _open_leases(self, consumer: ElasticInstance, lender: ElasticInstance) -> Leases | None:
        """What both share, at their coordinator; nobody has joined yet."""
        if self._config.swap_space == "dram":
            return None
        both = (consumer, lender)
        topology = Topology(
            memory_bytes={each.name: each.kv.num_pages * each.page_bytes for each in both},
            nodes={each.name: each.memory.node for each in both},
            producers={consumer.name: lender.name},
        )
        return Leases(open_coordinator(topology, self._config.coordinator, self._loop))

    def _make_consumer(self, instance: ElasticInstance) -> Consumer | Streamer:
        config, layout = self._config, instance.layout
        dram = self._elastic.dram_store(instance.memory.node, config.dram_bytes, layout)
        if config.consumer.streams:
            # bytes that have places: a real engine
            streamer = Streamer if dram.tables is None else LayeredStreamer
            return streamer(
                self._elastic, instance, self._leases, dram, config.informer_config(),
                self._loop, self._consumer_died, overlap=config.consumer.overlap,
            )  # fmt: skip
        variant = config.variants[config.variant]
        limits = Limits(
            batch_tokens=config.scheduler.batch_tokens,
            slice_iterations=variant.scheduler.slice_iterations,
            num_blocks=self._kv_blocks(instance),
            block_tokens=instance.kv.block_tokens,
            max_prompts=config.max_num_seqs,
        )
        unused = instance.kv.num_blocks - limits.num_blocks
        instance.kv.reserve(unused * len(instance.kv.all_groups), "not the consumer's")
        by_block = layout.page_bytes // (2 * layout.page_layers)
        swap = SwapSpace(
            self._elastic, instance, self._leases, dram, variant.migration,
            chunk_bytes=by_block if config.copies == "by_block" else None,
            issue_s=config.copy_issue_s,
        )  # fmt: skip
        return Consumer(
            instance, Turn(limits, config.variant == "artifact"), swap,
            variant.scheduler.fcfs_when_in_dram, config.informer_config(), self._loop,
            self._consumer_died, overlap_paging=config.consumer.overlap_paging,
        )  # fmt: skip

    def _kv_blocks(self, consumer: ElasticInstance) -> int:
        return max(1, int(self._config.consumer.kv_share * consumer.kv.num_blocks))

    def _make_lender(self, instance: ElasticInstance, borrower: ElasticInstance) -> Lender:
        config = self._config
        limits = vllm.Limits(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            enable_chunked_prefill=True,
            scheduler_reserve_full_isl=True,
        )
        return Lender(
            self._elastic, instance, borrower.layout, self._leases, limits,
            config.informer_config(), self._profiled(instance), self._loop, self._lender_died,
        )  # fmt: skip

    def _profiled(self, lender: ElasticInstance) -> tuple[float, int]:
        """Its stable rate and the bytes of each device that are free at it."""
        config = self._config.lender
        if config.profile is None:
            kv_bytes = lender.kv.num_pages * lender.page_bytes
            return config.stable_rate_per_s or inf, int(config.free_share * kv_bytes)
        found = read_profile(Path(config.profile))
        if found.model != lender.model.name or found.role != "producer":
            raise UsageError(
                f"system.lender.profile={config.profile} is of {found.model}, a {found.role}; "
                f"valid: of {lender.model.name}, a producer"
            )
        return found.stable_rate_per_s or inf, found.memory_balance

    @property
    def coordinator_process(self) -> CoordinatorProcess | None:
        """None: the coordinator is embedded, or there is none."""
        client = None if self._leases is None else self._leases.coordinator
        return client.process if isinstance(client, Remote) else None

    # Serving

    def submit(self, request: Request) -> None:
        longest = request.prompt_tokens + request.output_tokens - 1
        asked = self._cluster.models.get(request.model)
        lends = asked is not None and asked.name != self.consumer.instance.model.name
        blocks = self._lender_blocks if lends else self._blocks
        room = blocks * self.consumer.instance.kv.block_tokens
        if longest > room:
            self._cluster.drop(
                request, f"needs KV for {longest} tokens; a device has room for {room}"
            )
            return
        every = self._config.lender.every
        if lends:
            self._send([request], self.lender, self.lender)
            return
        self._num_submitted += 1
        if every is not None and self._num_submitted % every == 0 and self._lender_takes(request):
            self._send([request], self.lender, self.consumer)
        else:
            self._send([request], self.consumer, self.lender)

    def _lender_takes(self, request: Request) -> bool:
        """Where it has the request's model: longer ones can stream."""
        longest = request.prompt_tokens + request.output_tokens - 1
        return longest <= self._lender_blocks * self.consumer.instance.kv.block_tokens

    async def serve(self) -> None:
        loop = self._loop
        both = (self.consumer.instance, self.lender.instance)
        for role, each in zip(("consumer", "lender"), both, strict=True):
            self._elastic.take(each, role)
            if self._leases is not None:
                await self._leases.join(each.name)
                interval_s = self._config.coordinator.heartbeat_timeout_s / BEATS
                pulse = beat(self._leases.coordinator, each, interval_s, loop)
                loop.spawn(pulse, name=f"heartbeat of {each.name}")
        loop.spawn(self.lender.serve(), name="lender")
        loop.spawn(self.consumer.serve(), name="consumer")
        try:
            await loop.wait(Event(loop))
        finally:
            if self._leases is not None:
                self._leases.coordinator.close()

    # Deaths

    def _lost(self, instance: ElasticInstance) -> None:
        """The dead lender's leases are gone at once: nothing more is to be paged to them."""
        if instance is self.lender.instance and self._leases is not None:
            for lease in self.lender.lent:
                self.consumer.lose_lease(lease)
            self._leave(self._leases, instance)
        self.consumer.wake.set()
        self.lender.wake.set()

    def _leave(self, leases: Leases, instance: ElasticInstance) -> None:
        self._loop.spawn(leases.leave(instance.name), name=f"{instance.name} has left")

    def _consumer_died(self, left: Sequence[Request]) -> None:
        if self._leases is not None:
            self._leave(self._leases, self.consumer.instance)
            self.lender.withdrawn = True
        self._send(left, self.lender, self.lender)

    def _lender_died(self, left: Sequence[Request]) -> None:
        self._send(left, self.consumer, self.consumer)

    def _send(self, requests: Sequence[Request], to: Server, other: Server) -> None:
        """To one that lives; where neither does, they have failed."""
        alive = next((each for each in (to, other) if each.instance.lost is None), None)
        for request in requests:
            if alive is None:
                self._cluster.drop(request, "both instances are lost")
            elif alive is self.lender and not self._lender_takes(request):
                self._cluster.drop(request, "is too long for the instance that is left")
            else:
                alive.submit(request)
