"""The planner (Fig. 7): what is done when memory runs short, when demand is low, and at a death.

The plans are those of `plan.py`; the group manager carries them out.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.cluster import Cluster
from harness.elastic.instance import ElasticInstance
from systems.kunserve import plan as plans
from systems.kunserve.config import KunServeConfig
from systems.kunserve.dispatcher import redistribute
from systems.kunserve.exchange import hop_s, step_s
from systems.kunserve.group import Group, alone, members
from systems.kunserve.group_manager import GroupManager, whole_bytes
from systems.kunserve.merge import merge
from systems.kunserve.restore import restore
from systems.kunserve.server import Server


class Planner:
    """Changes the groups of `manager`. The last `config.standby` instances begin without weights
    and without requests."""

    def __init__(self, config: KunServeConfig, manager: GroupManager, cluster: Cluster) -> None:
        self._config, self._manager, self._cluster = config, manager, cluster
        self._model, instances = manager.model, manager.cluster.instances
        sizes = config.groups or []
        if config.variant == "artifact":
            sizes = [config.artifact.group_size] * (len(instances) // config.artifact.group_size)
        self._parts = plans.in_parts([each.name for each in instances], sizes)
        self._standby = list(instances[len(instances) - config.standby :])

    async def begin(self) -> None:
        """Has each instance serve alone, but for those on standby."""
        serving = self._serving()
        for instance in self._standby:
            await instance.drop(range(self._model.num_layers))
        await self._form(serving)

    def _serving(self) -> list[ElasticInstance]:
        every = self._manager.cluster.instances
        return [each for each in every if each.lost is None and each not in self._standby]

    async def _form(self, instances: Sequence[ElasticInstance]) -> None:
        """Has each of `instances` serve alone."""
        layers = self._model.num_layers
        await self._manager.form([alone(each.name, layers) for each in instances], [], [])

    async def drop(self, required_bytes: int) -> None:
        """Merges groups by the plan (§4.1). Then requests over a group's batch limit go to a group
        with room (§4.3). Those without room wait at the least loaded group; in the paper they wait
        at the dispatcher. required_bytes: R."""
        manager = self._manager
        groups = [server.group for server in manager.servers]
        plan, start_s = self._plan(groups, required_bytes), manager.loop.now
        new = [group for group in plan.groups if group not in groups]
        for group in new:
            await self._merge(group)
            manager.cluster.note(
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

    def _plan(self, groups: Sequence[Group], required_bytes: int) -> plans.Plan:
        config, model, most = self._config, self._model, self._config.max_group_size
        if config.plan == "none":
            return plans.Plan(tuple(groups), 0, 0)
        if self._parts:
            return plans.fixed_groups(groups, self._parts, model)
        if config.plan == "memory":
            kv_bytes = whole_bytes(self._serving())
            return plans.memory_greedy(groups, required_bytes, model, kv_bytes, most)
        if config.plan == "exhaustive":
            each_s = step_s(config.chunks, model, self._cluster)
            throughput = plans.profiled_throughput(each_s, hop_s(config.chunks, model))
            return plans.exhaustive(groups, required_bytes, model, throughput, most)
        return plans.throughput_greedy(groups, required_bytes, model, most)

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
        manager = self._manager
        standby = [instance for instance in self._standby if instance.lost is None]
        count = -(-short_bytes // whole_bytes(standby[:1])) if standby else 0
        chosen, self._standby = standby[:count], standby[count:]
        if chosen:
            start_s = manager.loop.now
            await self._form(chosen)
            for instance in chosen:
                manager.cluster.note("standby", instance.name, start_s, short_bytes=short_bytes)
        return bool(chosen)

    def restore(self, server: Server) -> None:
        """Begins to restore a group (§4.2)."""
        live = self._config.restore == "live"
        self._manager.begin(server, lambda stop: restore(self._manager, server, stop, live=live))

    async def recover(self, dead: str) -> None:
        """The layers of the dead instance are loaded elsewhere, and its requests are computed
        again (§4.3, fault tolerance)."""
        manager, start_s = self._manager, self._manager.loop.now
        await manager.recover(dead)
        if not self._serving():
            await self._start_standby(1)
        manager.cluster.note("recover", dead, start_s)
