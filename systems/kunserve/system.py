"""KunServe (preprint of December 2024): the parts of Fig. 7 put together.

A dispatcher gives requests to the least loaded group (§4.3). A monitor looks at every group's
memory each `poll_s`. If memory will run short, the planner merges groups (§4.1), and `reshape.py`
forms them. If demand is low, `returning.py` restores the group. The code is the same live and
simulated. README.md maps sections to files and says what the paper leaves open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.clock import Event, Loop
from harness.cluster import Cluster
from harness.cost.hardware import Hardware
from harness.elastic.instance import ElasticInstance
from harness.elastic.pipeline import Pipeline
from harness.errors import RunError
from harness.model_spec import ModelSpec
from harness.placement import Demand, Elastic, Placement, dedicated
from harness.request import Request
from systems.kunserve.accounts import dispatch_load, group_load, names, sample, whole_bytes
from systems.kunserve.artifact_monitor import drop_due, restore_due
from systems.kunserve.config import KunServeConfig, check
from systems.kunserve.dispatcher import Queued, Target, least_loaded, redistribute
from systems.kunserve.exchange import LinkProfile, check_chunk, chunk_bytes
from systems.kunserve.fallback import fall_back
from systems.kunserve.group import Group, alone, members
from systems.kunserve.group_manager import GroupManager
from systems.kunserve.merge import merge
from systems.kunserve.microbatch import artifact_tokens
from systems.kunserve.monitor import Decision, Monitor, required_bytes
from systems.kunserve.plan import (
    Plan,
    exhaustive,
    fixed_groups,
    memory_greedy,
    profiled_throughput,
    throughput_greedy,
)
from systems.kunserve.restore import Rates
from systems.kunserve.returning import restore
from systems.kunserve.server import Server

EVERYBODY = 2**31  # victims at a time: all requests


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
        if cluster.elastic is None:
            raise ValueError(
                "system kunserve needs instances whose weights and KV move: choose engine=torch or "
                "engine=sim"
            )
        instances = cluster.elastic.instances
        check(config, instances)
        self._config, self._loop, self._cluster = config, loop, cluster
        self._elastic, self._model = cluster.elastic, instances[0].model
        self._artifact = config.variant == "artifact"
        victims = EVERYBODY if config.exchange == "blocking" else 0
        self._shaper = GroupManager(
            cluster.elastic, loop, self._new_server, self._dispatch,
            victims=config.artifact.victims if self._artifact else victims,
            chunk_bytes=self._chunk_bytes(instances[0]),
            rates=Rates(config.chunks.link_bytes_per_s, cluster.profile.pcie_bytes_per_s),
            retry_s=config.poll_s,
        )  # fmt: skip
        self._monitors: dict[Server, Monitor] = {}
        self._homeless = deque[Request]()  # wait while there is no group to serve them
        self._standby = list(instances[len(instances) - config.standby :])
        self._lost: list[str] = []
        self._attention = Event(loop)
        self._num_arrived = 0
        self._rates: list[int] = []  # requests that arrived between polls
        for host in cluster.elastic.hosts.values():
            try:
                host.keep(self._model.name)  # §4.3, fault tolerance
            except RunError as error:
                raise ValueError(
                    f"system kunserve keeps a copy of the weights on each host: {error}; raise "
                    "hardware.host_memory_bytes"
                ) from error
        cluster.elastic.on_lost = self._on_lost

    def _chunk_bytes(self, instance: ElasticInstance) -> int:
        chunks, page = self._config.chunks, instance.page_bytes
        if chunks.bytes is not None:
            exchange = instance.kv.num_pages * page // 2
            check_chunk(chunks.bytes, page, exchange)
            return chunks.bytes
        link = LinkProfile(chunks.link_bytes_per_s, chunks.link_latency_s)
        return chunk_bytes(self._step_s() / 2, self._activation_bytes(), link, page)

    def _step_s(self) -> float:
        """A decode step of the profiled micro-batch through all layers."""
        chunks = self._config.chunks
        context = chunks.batch * chunks.context_tokens
        return self._cluster.profile.decode_step_s(self._model, chunks.batch, context)

    def _activation_bytes(self) -> int:
        return self._config.chunks.batch * self._model.hidden_size * self._model.dtype_bytes

    # Dispatcher

    def submit(self, request: Request) -> None:
        self._num_arrived += 1
        least = min(whole_blocks(instance) for instance in self._elastic.instances)
        kv = self._elastic.instances[0].kv
        if kv.blocks_for(request.prompt_tokens + request.output_tokens) > least:
            self._cluster.drop(
                request, f"needs more KV than the {least * kv.block_tokens} tokens of an instance"
            )
            return
        self._dispatch(request)

    def _dispatch(self, request: Request) -> None:
        servers = self._shaper.servers
        if not servers:
            self._homeless.append(request)
            return
        chosen = least_loaded([dispatch_load(server) for server in servers])
        next(server for server in servers if server.name == chosen).submit(request)

    def _redistribute(self) -> None:
        """After a drop: requests over a group's batch limit go to a group with room (§4.3). Those
        without room wait at the least loaded group; in the paper they wait at the dispatcher."""
        targets, requests = [], dict[int, Request]()
        for server in self._shaper.servers:
            kv = server.executor.kv
            queue = [
                Queued(r.request_id, r.arrival_s, r.known_tokens, r.priority)
                for r in server.waiting
            ]
            requests |= {request.request_id: request for request in server.waiting}
            free = kv.free_blocks * kv.block_tokens
            server.waiting.clear()
            batch = server.batch_tokens - server.lacking_tokens
            targets.append(Target(server.name, server.free_seats, free, batch, queue))
        found = redistribute(targets)
        for server in self._shaper.servers:
            for queued in found.queues[server.name]:
                server.submit(requests[queued.request_id])
        for queued in found.held:
            self._dispatch(requests[queued.request_id])

    # Groups

    def _new_server(self, group: Group, executor: ElasticInstance | Pipeline) -> Server:
        config = self._config
        server = Server(
            group, executor, self._loop, config.limits, config.steps_beside, self._budget
        )
        self._monitors[server] = Monitor(config.monitor)
        return server

    def _budget(self, server: Server) -> int:
        """Tokens of an iteration."""
        limits = self._config.limits
        if not self._artifact or len(server.group) == 1:
            return limits.max_num_batched_tokens
        waiting = sum(request.known_tokens for request in server.waiting)
        chunk = self._config.artifact.chunk_tokens
        return artifact_tokens(limits.max_num_seqs, waiting, len(server.group), chunk)

    async def serve(self) -> None:
        serving = self._serving()
        for instance in self._standby:
            await instance.drop(range(self._model.num_layers))
        await self._form([alone(each.name, self._model.num_layers) for each in serving], [], [])
        while True:
            await self._loop.wait(self._attention, until=self._loop.now + self._config.poll_s)
            self._attention.clear()
            while self._lost:
                await self._recover(self._lost.pop())
            await self._watch()

    def _instances(self) -> list[ElasticInstance]:
        return [instance for instance in self._elastic.instances if instance.lost is None]

    def _serving(self) -> list[ElasticInstance]:
        return [instance for instance in self._instances() if instance not in self._standby]

    async def _form(
        self, groups: Sequence[Group], running: list[Request], waiting: list[Request]
    ) -> None:
        await self._shaper.form(groups, running, waiting)
        while self._homeless and self._shaper.servers:
            self._dispatch(self._homeless.popleft())

    async def _watch(self) -> None:
        """One poll."""
        shaper = self._shaper
        for server in [s for s in shaper.leaving if s.empty and s not in shaper.jobs]:
            await shaper.take_down([server])
            self._monitors.pop(server)
            for each in shaper.overlapping(names([server.group])):
                each.shared = len(each.group) > 1
        self._rates.append(self._num_arrived)
        self._num_arrived = 0
        for server in [*shaper.servers, *shaper.leaving]:
            server.wake(idle=True)
        decisions = {server: self._observe(server) for server in shaper.servers}
        if self._artifact:
            self._by_thresholds(decisions)
        if "drop" in decisions.values():
            await self._drop()
        elif self._config.restore != "never":
            live = self._config.restore == "live"
            for server, decision in decisions.items():
                if decision == "restore" and server not in shaper.jobs:
                    self._restore(server, live=live)

    def _restore(self, server: Server, *, live: bool) -> None:
        self._shaper.begin(server, lambda stop: restore(self._shaper, server, stop, live=live))

    def _observe(self, server: Server) -> Decision:
        """What the group's monitor decides now.

        During a restore, and while requests come from a pipeline, the history is reset: memory that
        a restore takes away, or requests that come all at once, are no rates.
        """
        mine = list(self._shaper.members(server.group).values())
        alive = [member for member in mine if member.lost is None]
        guests = [r for other in self._shaper.leaving for r in other.running]
        seen = sample(server, alive or mine, guests, self._loop.now)
        self._elastic.note(
            "kv", server.name, self._loop.now, demand_bytes=seen.demand_bytes,
            capacity_bytes=seen.capacity_bytes, queued=len(server.waiting),
        )  # fmt: skip
        monitor = self._monitors[server]
        pipelined = len(server.group) > 1
        arriving = any(
            other in self._shaper.jobs
            for other in self._shaper.overlapping(names([server.group]))
            if other in self._shaper.leaving
        )
        if arriving or (pipelined and server in self._shaper.jobs):
            monitor.reset()
        return monitor.observe(seen, whole_bytes(mine) if pipelined else None)

    def _by_thresholds(self, decisions: dict[Server, Decision]) -> None:
        """variant=artifact: sets the same decision for all groups."""
        loads = [group_load(server) for server in decisions]
        thresholds = self._config.artifact.thresholds()
        drop = drop_due(loads, thresholds)
        calm = restore_due(loads, self._rates, thresholds)
        for server in decisions:
            pipelined = len(server.group) > 1
            decisions[server] = "drop" if drop else "restore" if calm and pipelined else None

    async def _drop(self) -> None:
        groups = [server.group for server in self._shaper.servers]
        plan = self._plan(groups)
        start_s = self._loop.now
        for group in plan.groups:
            if group not in groups:
                await self._merge(group)
                self._elastic.note(
                    "plan", "+".join(members(group)), start_s, freed_bytes=plan.freed_bytes,
                    short_bytes=plan.short_bytes,
                )  # fmt: skip
        started = await self._start_standby(plan.short_bytes)
        if started or any(group not in groups for group in plan.groups):
            self._redistribute()

    async def _start_standby(self, short_bytes: int) -> bool:
        """Starts standby instances for what the plan is short of (§4.3, autoscaling).

        Weights come from peers or the host; the instances stay. Without standby instances the
        engine preempts. Whether one was started.
        """
        standby = [instance for instance in self._standby if instance.lost is None]
        if not standby or short_bytes <= 0:
            return False
        one = whole_bytes(standby[:1])
        chosen = standby[: fall_back(short_bytes, len(standby), one, []).started]
        start_s = self._loop.now
        self._standby = standby[len(chosen) :]
        await self._form([alone(each.name, self._model.num_layers) for each in chosen], [], [])
        for instance in chosen:
            self._elastic.note("standby", instance.name, start_s, short_bytes=short_bytes)
        return True

    def _plan(self, groups: Sequence[Group]) -> Plan:
        if self._artifact:
            size = self._config.artifact.group_size
            if all(len(group) == 1 for group in groups) and len(groups) % size == 0:
                return fixed_groups([members(group)[0] for group in groups], size, self._model)
            return Plan(tuple(groups), 0, 0)
        required = required_bytes(
            [self._monitors[server].shortage_bytes() for server in self._shaper.servers]
        )
        if self._config.plan == "memory":
            kv_bytes = whole_bytes(self._serving())
            return memory_greedy(groups, required, self._model, kv_bytes)
        if self._config.plan == "exhaustive":
            chunks = self._config.chunks
            hop_s = chunks.link_latency_s + self._activation_bytes() / chunks.link_bytes_per_s
            throughput = profiled_throughput(self._step_s(), hop_s)
            return exhaustive(groups, required, self._model, throughput)
        return throughput_greedy(groups, required, self._model)

    async def _merge(self, group: Group) -> None:
        """Forms `group`, together with servers that still share a member with it."""
        shaper = self._shaper
        involved = shaper.overlapping(set(members(group)))
        merged = merge([s.group for s in involved if s in shaper.servers])
        if merged is None:
            return
        await self._reform(involved, [merged])

    async def _recover(self, dead: str) -> None:
        """§4.3: the layers of the dead instance are loaded elsewhere, and its requests are computed
        again."""
        if not self._instances():
            raise RunError("all instances are lost: no instance is left to serve")
        involved = self._shaper.overlapping({dead})
        groups = [server.group for server in involved if server in self._shaper.servers]
        start_s = self._loop.now
        await self._reform(involved, groups)
        if not self._serving():
            await self._start_standby(1)
        self._elastic.note("recover", dead, start_s)

    async def _reform(self, involved: Sequence[Server], groups: Sequence[Group]) -> None:
        running, waiting = await self._shaper.take_down(involved)
        for server in involved:
            self._monitors.pop(server)
        await self._form(groups, running, waiting)

    def _on_lost(self, instance: ElasticInstance) -> None:
        self._lost.append(instance.name)
        self._attention.set()


def whole_blocks(instance: ElasticInstance) -> int:
    """KV blocks of an instance that holds all parameters."""
    return instance.layout.num_pages() // instance.layout.num_groups
