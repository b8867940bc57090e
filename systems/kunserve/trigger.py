"""The online monitor of a run (§4.3): what each group's memory says is to be done.

With variant=artifact the public code's thresholds decide, for all groups together (`artifact.py`).
"""

from __future__ import annotations

from systems.kunserve.artifact import drop_due, restore_due
from systems.kunserve.config import KunServeConfig
from systems.kunserve.group import names
from systems.kunserve.group_manager import GroupManager, whole_bytes
from systems.kunserve.monitor import Decision, Monitor, Sample, queued_blocks, required_bytes
from systems.kunserve.server import Server


class Trigger:
    """The monitors of the groups that `manager` has."""

    def __init__(self, config: KunServeConfig, manager: GroupManager) -> None:
        self._config, self._manager = config, manager
        instance = manager.cluster.instances[0]
        self._page_bytes = instance.page_bytes * manager.model.tp  # of all devices
        self._block_bytes = self._page_bytes * instance.layout.num_groups
        self._monitors: dict[Server, Monitor] = {}
        self._rates: list[int] = []  # requests that arrived between polls

    def decisions(self, num_arrived: int) -> dict[Server, Decision]:
        """What each group's monitor decides now. num_arrived: requests since the last time."""
        self._rates.append(num_arrived)
        servers = list(self._manager.servers)
        before, config = self._monitors, self._config
        self._monitors = {each: before.get(each) or Monitor(config.monitor) for each in servers}
        decisions = {server: self._observe(server) for server in servers}
        if config.variant == "artifact":
            loads = [server.load() for server in servers]
            drop = drop_due(loads, config.artifact)
            calm = restore_due(loads, self._rates, config.artifact)
            for server in servers:
                restore_it = calm and len(server.group) > 1
                decisions[server] = "drop" if drop else "restore" if restore_it else None
        return decisions

    def required_bytes(self) -> int:
        """R of §4.1, by the last samples."""
        return required_bytes([each.shortage_bytes() for each in self._monitors.values()])

    def _observe(self, server: Server) -> Decision:
        """What the group's monitor decides now.

        During a restore, and while requests come from a pipeline, the history is reset: memory that
        a restore takes away, or requests that come all at once, are no rates.
        """
        manager, monitor = self._manager, self._monitors[server]
        seen = self._sample(server)
        manager.cluster.note(
            "kv", server.name, manager.loop.now, demand_bytes=seen.demand_bytes,
            capacity_bytes=seen.capacity_bytes, queued=len(server.waiting),
        )  # fmt: skip
        pipelined = len(server.group) > 1
        arriving = bool(manager.leaving) and any(
            other in manager.jobs and other in manager.leaving
            for other in manager.overlapping(names([server.group]))
        )
        if arriving or (pipelined and server in manager.jobs):
            monitor.reset()
        restored = whole_bytes(manager.members(server.group).values()) if pipelined else None
        return monitor.observe(seen, restored)

    def _sample(self, server: Server) -> Sample:
        """Demand and capacity of a group now. Requests of pipelines that are being left count where
        their KV is."""
        load, queue = server.load(), self._config.monitor.queue
        queued = queued_blocks(load, queue) * self._block_bytes
        demand = load.used_blocks * self._block_bytes + queued
        guests = [r.request_id for other in self._manager.leaving for r in other.running]
        if guests:
            mine = list(self._manager.members(server.group).values())
            for member in [each for each in mine if each.lost is None] or mine:
                held, parts = member.kv.held, member.kv.groups
                pages = sum(held.get(guest, 0) * len(parts.get(guest, ())) for guest in guests)
                demand += pages * self._page_bytes
        capacity = load.total_blocks * self._block_bytes
        planned = queued if queue == "plan" else 0
        return Sample(self._manager.loop.now, demand, capacity, planned)
