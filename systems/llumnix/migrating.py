"""Live migration of running requests, one at a time for each instance (Llumnix §4.2, §4.4).

A request goes on decoding while its full blocks are copied. At a step boundary it stops, the rest
of its KV follows, and it continues at the target (`ElasticCluster.move_kv`). No token is computed
twice, and no token is computed before its KV is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.clock import Loop
from harness.elastic.cluster import ElasticCluster
from harness.elastic.fabric import Sending
from harness.elastic.instance import ElasticInstance
from harness.request import Request
from systems.kunserve.server import Server
from systems.llumnix.freeness import freeness
from systems.llumnix.migration import PairConfig, paired, victim
from systems.serving.load import Load


class Migrations:
    """The migrations between servers. A server is an end of one migration at most."""

    def __init__(self, cluster: ElasticCluster, loop: Loop, config: PairConfig) -> None:
        self._cluster, self._loop, self._config = cluster, loop, config
        self._busy: set[Server] = set()  # at one end of a migration

    def begin(self, servers: Sequence[Server]) -> None:
        """One poll: begins a migration for each pair of which neither end has one."""
        by_name = {server.name: server for server in servers}
        loads = {server.name: server.load() for server in servers}
        for pair in paired(list(loads.values()), self._config):
            source, target = by_name[pair.source], by_name[pair.target]
            if source in self._busy or target in self._busy:
                continue
            blocks_for = source.executor.kv.blocks_for
            request = victim([r for r in source.running if r.decoding], blocks_for)
            if request is None:
                continue
            if self._stays_free(loads[target.name], blocks_for(request.known_tokens)):
                self._busy |= {source, target}
                self._loop.spawn(
                    self._migrate(request, source, target),
                    name=f"migration of request {request.request_id}",
                )

    def _stays_free(self, target: Load, blocks: int) -> bool:
        """Whether the target is still no source with a request of so many blocks: else it would
        send it back."""
        used, running = target.used_blocks + blocks, target.num_running + 1
        with_it = replace(target, used_blocks=used, num_running=running)
        return freeness(with_it) >= self._config.source_below

    async def _migrate(self, request: Request, source: Server, target: Server) -> None:
        here, there = source.executor, target.executor
        assert isinstance(here, ElasticInstance)
        assert isinstance(there, ElasticInstance)
        source.moving.add(request.request_id)
        try:
            await self._cluster.move_kv(
                [request], range(here.model.num_layers), here, there, Sending("migration")
            )
        finally:
            source.moving.discard(request.request_id)
            self._busy -= {source, target}
        if request.request_id in there.kv.groups:
            source.give_up(request)
            target.join([request])
        else:  # there was no room, or it ended or was preempted before its last block
            source.resume(request)
        source.moved(request)
