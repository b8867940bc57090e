"""KunServe (preprint of December 2024): the parts of Fig. 7 put together.

The group manager dispatches requests to the least loaded group (§4.3). A monitor looks at every
group's memory each `poll_s`. If memory will run short, the planner merges groups (§4.1). If demand
is low, they are restored (§4.2). The code is the same live and simulated. README.md maps sections
to files and says what the paper leaves open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.clock import Event, Loop
from harness.cluster import Cluster
from harness.cost.hardware import Hardware
from harness.elastic.instance import ElasticInstance
from harness.elastic.pipeline import Pipeline, remote_attention_bytes
from harness.errors import RunError
from harness.model_spec import ModelSpec
from harness.placement import Demand, Elastic, Placement, dedicated
from harness.request import Request
from systems.kunserve.artifact import drop_due, limits_of, restore_due
from systems.kunserve.config import KunServeConfig, check_instances
from systems.kunserve.dispatcher import dispatch_load, redistribute
from systems.kunserve.exchange import LinkProfile, check_chunk, chunk_bytes
from systems.kunserve.group import Group, alone, members, names
from systems.kunserve.group_kv import GroupKv
from systems.kunserve.group_manager import GroupManager, whole_bytes
from systems.kunserve.merge import merge
from systems.kunserve.monitor import Decision, Monitor, Sample, queued_blocks, required_bytes
from systems.kunserve.plan import (
    Plan,
    exhaustive,
    fixed_groups,
    in_parts,
    memory_greedy,
    profiled_throughput,
    throughput_greedy,
)
from systems.kunserve.restore import restore
from systems.kunserve.server import Server
from systems.kunserve.weights import Rates
from systems.serving.elastic import elastic_of

ALL_REQUESTS = 2**31  # victims at a time


class KunServe:
    """Serves one model. Raises ValueError for instances that cannot drop parameters, or if a host
    has no room for a copy of the weights."""

    Config = KunServeConfig

    @staticmethod
    def place(
        config: KunServeConfig, models: Mapping[str, ModelSpec], hardware: Hardware, demand: Demand
    ) -> list[Placement]:
        placements = dedicated(models, hardware)
        return [replace(p, elastic=Elastic(page_layers=1, kv_across=True)) for p in placements]

    def __init__(self, config: KunServeConfig, *, loop: Loop, cluster: Cluster) -> None:
        elastic = elastic_of(cluster, "kunserve needs instances whose weights and KV move")
        instances = elastic.instances
        check_instances(config, instances)
        self._config, self._loop, self._cluster = config, loop, cluster
        self._elastic, self._model = elastic, instances[0].model
        self._artifact = config.variant == "artifact"
        self._page_bytes = instances[0].page_bytes * self._model.tp  # of all devices
        layouts = [instance.layout for instance in instances]
        self._block_bytes = self._page_bytes * layouts[0].num_groups
        self._most_blocks = min(each.num_pages() // each.num_groups for each in layouts)
        sizes = config.groups or []
        if self._artifact:
            sizes = [config.artifact.group_size] * (len(instances) // config.artifact.group_size)
        self._parts = in_parts([each.name for each in instances], sizes)
        victims = ALL_REQUESTS if config.exchange == "blocking" else 0
        kv = GroupKv(
            elastic, loop, retry_s=config.poll_s,
            victims=config.artifact.victims if self._artifact else victims,
            chunk_bytes=self._chunk_bytes(instances[0]),
        )  # fmt: skip
        rates = Rates(config.chunks.link_bytes_per_s, cluster.profile.pcie_bytes_per_s)
        self._manager = GroupManager(elastic, loop, kv, self._server, dispatch_load, rates=rates)
        self._monitors: dict[Server, Monitor] = {}
        self._standby = list(instances[len(instances) - config.standby :])
        self._lost: list[str] = []
        self._attention = Event(loop)
        self._num_arrived = 0
        self._rates: list[int] = []  # requests that arrived between polls
        for host in elastic.hosts.values():
            try:
                host.keep(self._model.name)  # §4.3, fault tolerance
            except RunError as error:
                raise ValueError(
                    f"system kunserve keeps a copy of the weights on each host: {error}; raise "
                    "hardware.host_memory_bytes"
                ) from error
        elastic.on_lost = self._on_lost

    def _chunk_bytes(self, instance: ElasticInstance) -> int:
        chunks, page = self._config.chunks, instance.page_bytes
        if chunks.bytes is not None:
            check_chunk(chunks.bytes, page, instance.kv.num_pages * page // 2)
            return chunks.bytes
        link = LinkProfile(chunks.link_bytes_per_s, chunks.link_latency_s)
        interval_s = self._step_s() / self._model.num_layers  # each layer sends for its attention
        there = remote_attention_bytes(self._model).there * chunks.batch // self._model.tp
        return chunk_bytes(interval_s, there, link, page)

    def _step_s(self) -> float:
        """A decode step of the profiled micro-batch through all layers."""
        chunks = self._config.chunks
        context = chunks.batch * chunks.context_tokens
        return self._cluster.profile.decode_step_s(self._model, chunks.batch, context)

    def _activation_bytes(self) -> int:
        return self._config.chunks.batch * self._model.hidden_size * self._model.dtype_bytes

    def _server(self, group: Group, executor: ElasticInstance | Pipeline) -> Server:
        config, limits = self._config, self._config.limits
        if self._artifact:
            limits = limits_of(limits, len(group), config.artifact)
        return Server(
            group, executor, self._loop, limits=limits, steps_beside=config.steps_beside,
            balanced=self._artifact,
        )  # fmt: skip

    def submit(self, request: Request) -> None:
        self._num_arrived += 1
        kv, most = self._elastic.instances[0].kv, self._most_blocks
        if kv.blocks_for(request.prompt_tokens + request.output_tokens) > most:
            self._cluster.drop(
                request, f"needs more KV than the {most * kv.block_tokens} tokens of an instance"
            )
            return
        self._manager.dispatch(request)

    async def serve(self) -> None:
        serving = self._serving()
        for instance in self._standby:
            await instance.drop(range(self._model.num_layers))
        await self._form(serving)
        while True:
            await self._loop.wait(self._attention, until=self._loop.now + self._config.poll_s)
            self._attention.clear()
            while self._lost:
                await self._recover(self._lost.pop())
            await self._poll()

    def _serving(self) -> list[ElasticInstance]:
        every = self._elastic.instances
        return [each for each in every if each.lost is None and each not in self._standby]

    async def _form(self, instances: Sequence[ElasticInstance]) -> None:
        """Has each of `instances` serve alone."""
        layers = self._model.num_layers
        await self._manager.form([alone(each.name, layers) for each in instances], [], [])

    async def _poll(self) -> None:
        """Looks at every group (§4.3): drops, restores, or leaves all as it is."""
        manager, config = self._manager, self._config
        await manager.end_left()
        self._rates.append(self._num_arrived)
        self._num_arrived = 0
        for server in [*manager.servers, *manager.leaving]:
            server.wake(idle=True)
        decisions = self._decisions()
        if "drop" in decisions.values():
            await self._drop()
        elif config.restore != "never":
            for server, decision in decisions.items():
                if decision == "restore" and server not in manager.jobs:
                    self._restore(server)

    # Monitor (§4.3)

    def _decisions(self) -> dict[Server, Decision]:
        """What each group's monitor decides now; with variant=artifact, all groups together."""
        servers = list(self._manager.servers)
        before, config = self._monitors, self._config
        self._monitors = {each: before.get(each) or Monitor(config.monitor) for each in servers}
        decisions = {server: self._observe(server) for server in servers}
        if self._artifact:
            loads = [server.load() for server in servers]
            drop = drop_due(loads, config.artifact)
            calm = restore_due(loads, self._rates, config.artifact)
            for server in servers:
                restore_it = calm and len(server.group) > 1
                decisions[server] = "drop" if drop else "restore" if restore_it else None
        return decisions

    def _observe(self, server: Server) -> Decision:
        """What the group's monitor decides now.

        During a restore, and while requests come from a pipeline, the history is reset: memory that
        a restore takes away, or requests that come all at once, are no rates.
        """
        manager, monitor = self._manager, self._monitors[server]
        seen = self._sample(server)
        self._elastic.note(
            "kv", server.name, self._loop.now, demand_bytes=seen.demand_bytes,
            capacity_bytes=seen.capacity_bytes, queued=len(server.waiting),
        )  # fmt: skip
        pipelined = len(server.group) > 1
        arriving = any(
            other in manager.jobs and other in manager.leaving
            for other in manager.overlapping(names([server.group]))
        )
        if arriving or (pipelined and server in manager.jobs):
            monitor.reset()
        mine = manager.members(server.group).values()
        return monitor.observe(seen, whole_bytes(mine) if pipelined else None)

    def _sample(self, server: Server) -> Sample:
        """Demand and capacity of a group now. Requests of pipelines that are being left count where
        their KV is."""
        load, queue = server.load(), self._config.monitor.queue
        queued = queued_blocks(load, queue) * self._block_bytes
        demand = load.used_blocks * self._block_bytes + queued
        guests = [r.request_id for other in self._manager.leaving for r in other.running]
        mine = list(self._manager.members(server.group).values())
        for member in [each for each in mine if each.lost is None] or mine:
            held, parts = member.kv.held, member.kv.groups
            pages = sum(held.get(guest, 0) * len(parts.get(guest, ())) for guest in guests)
            demand += pages * self._page_bytes
        capacity = load.total_blocks * self._block_bytes
        return Sample(self._loop.now, demand, capacity, queued if queue == "plan" else 0)

    # Decisions

    async def _drop(self) -> None:
        """Merges groups by the plan (§4.1). Then requests over a group's batch limit go to a group
        with room (§4.3). Those without room wait at the least loaded group; in the paper they wait
        at the dispatcher."""
        manager = self._manager
        groups = [server.group for server in manager.servers]
        plan, start_s = self._plan(groups), self._loop.now
        new = [group for group in plan.groups if group not in groups]
        for group in new:
            await self._merge(group)
            self._elastic.note(
                "plan", "+".join(members(group)), start_s, freed_bytes=plan.freed_bytes,
                short_bytes=plan.short_bytes,
            )  # fmt: skip
        started = plan.short_bytes > 0 and await self._start_standby(plan.short_bytes)
        if started or new:
            servers = list(manager.servers)
            targets = [server.give_queue() for server in servers]
            held = redistribute(targets)
            for server, target in zip(servers, targets, strict=True):
                for request in target.queue:
                    server.submit(request)
            for request in held:
                manager.dispatch(request)

    def _plan(self, groups: Sequence[Group]) -> Plan:
        most = self._config.max_group_size
        if self._config.plan == "none":
            return Plan(tuple(groups), 0, 0)
        if self._parts:
            return fixed_groups(groups, self._parts, self._model)
        required = required_bytes([each.shortage_bytes() for each in self._monitors.values()])
        if self._config.plan == "memory":
            kv_bytes = whole_bytes(self._serving())
            return memory_greedy(groups, required, self._model, kv_bytes, most)
        if self._config.plan == "exhaustive":
            chunks = self._config.chunks
            hop_s = chunks.link_latency_s + self._activation_bytes() / chunks.link_bytes_per_s
            throughput = profiled_throughput(self._step_s(), hop_s)
            return exhaustive(groups, required, self._model, throughput, most)
        return throughput_greedy(groups, required, self._model, most)

    async def _merge(self, group: Group) -> None:
        """Forms `group`, together with servers that still share a member with it."""
        manager = self._manager
        involved = manager.overlapping(set(members(group)))
        merged = merge([s.group for s in involved if s in manager.servers])
        if merged is not None:
            await manager.reform(involved, [merged])

    async def _start_standby(self, short_bytes: int) -> bool:
        """Starts standby instances for what a plan is short of (§4.3, autoscaling).

        "There is a finite amount of memory that can be freed by dropping parameters. Like prior
        work, we can automatically start new instances on demand." Weights come from peers or the
        host; the instances stay. Without standby instances the engine preempts. Whether one was
        started.
        """
        standby = [instance for instance in self._standby if instance.lost is None]
        count = -(-short_bytes // whole_bytes(standby[:1])) if standby else 0
        chosen, self._standby = standby[:count], standby[count:]
        if chosen:
            start_s = self._loop.now
            await self._form(chosen)
            for instance in chosen:
                self._elastic.note("standby", instance.name, start_s, short_bytes=short_bytes)
        return bool(chosen)

    def _restore(self, server: Server) -> None:
        live = self._config.restore == "live"
        self._manager.begin(server, lambda stop: restore(self._manager, server, stop, live=live))

    # Fault tolerance (§4.3)

    def _on_lost(self, instance: ElasticInstance) -> None:
        self._lost.append(instance.name)
        self._attention.set()

    async def _recover(self, dead: str) -> None:
        """The layers of the dead instance are loaded elsewhere, and its requests are computed
        again."""
        if all(instance.lost is not None for instance in self._elastic.instances):
            raise RunError("all instances are lost: no instance is left to serve")
        manager, start_s = self._manager, self._loop.now
        involved = manager.overlapping({dead})
        await manager.reform(involved, [s.group for s in involved if s in manager.servers])
        if not self._serving():
            await self._start_standby(1)
        self._elastic.note("recover", dead, start_s)
