"""What surrounds a replay over HTTP: connections made ahead, and afterwards what must be known of
the client's own lateness and of the server's prefix cache to judge the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from harness.clock import WallLoop
from harness.drivers.connections import keep_ahead, needed
from harness.drivers.http_endpoint import HttpEndpoint
from harness.drivers.io_thread import IoThread
from harness.drivers.prefix_cache import read_counters
from harness.engine_api import Experiment


@contextmanager
def replaying(
    endpoints: Sequence[HttpEndpoint],
    roots: Sequence[str],
    headers: Mapping[str, str],
    io: IoThread,
    experiment: Experiment,
    *,
    caching_intended: bool,
) -> Iterator[None]:
    """`roots`: where each server has its /metrics. `caching_intended`: hits in its prefix cache are
    part of what is measured. Raises OSError where a server takes no connection."""
    loop, recorder = experiment.loop, experiment.recorder
    assert isinstance(loop, WallLoop)
    arrivals_s = [record.request.arrival_s for record in recorder.records.values()]
    pools = [endpoint.connections for endpoint in endpoints]
    at_start = needed(arrivals_s, -1e-9)
    for pool in pools:
        pool.prepare(max(1, -(-at_start // len(pools))))
    if arrivals_s:
        loop.spawn(keep_ahead(pools, arrivals_s, loop, io), name="connections")
    before = [read_counters(root, headers) for root in roots]
    try:
        yield
    finally:
        io.record_stalls(recorder)
    for endpoint, root, then in zip(endpoints, roots, before, strict=True):
        now = read_counters(root, headers)
        queried = hits = None
        if then is not None and now is not None:
            queried = now.queried_tokens - then.queried_tokens
            hits = now.hit_tokens - then.hit_tokens
        recorder.event(
            "prefix_cache", endpoint.name, 0.0, loop.now,
            intended=caching_intended, queried_tokens=queried, hit_tokens=hits,
        )  # fmt: skip
