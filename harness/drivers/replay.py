"""What surrounds a replay over HTTP: connections made ahead, and afterwards what must be known of
the client's own lateness and of the server's prefix cache to judge the run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from harness.clock import WallLoop
from harness.drivers.counters import counters
from harness.drivers.engine_metrics import scraping
from harness.drivers.exchange import Line
from harness.drivers.http_endpoint import HttpEndpoint
from harness.drivers.io_process import FarLine, Io
from harness.drivers.io_thread import IoThread, record_lateness
from harness.engine_api import Experiment
from harness.errors import RunError

LEAD_S = 0.5  # connections are there this long before the arrival that needs them
LOOK_S = 0.1  # how often arrivals ahead are counted
PREFIX_CACHE = "vllm:prefix_cache_"  # its counters count tokens


@contextmanager
def replaying(
    endpoints: Sequence[HttpEndpoint], ios: Sequence[Io], experiment: Experiment, *,
    caching_intended: bool,
) -> Iterator[None]:  # fmt: skip
    """`caching_intended`: hits in a server's prefix cache are part of what is measured. Raises
    OSError where a server takes no connection."""
    loop, recorder = experiment.loop, experiment.recorder
    assert isinstance(loop, WallLoop)
    arrivals_s = [record.request.arrival_s for record in recorder.records.values()]
    lines = [line for endpoint in endpoints for line in endpoint.lines]
    in_flight = experiment.concurrency
    at_start = needed(arrivals_s, -1e-9) if in_flight is None else in_flight
    for line in lines:
        line.prepare(max(1, -(-at_start // len(lines))))
    if arrivals_s and in_flight is None:  # else a request has the connection of another
        loop.spawn(keep_ahead(lines, _ahead(experiment), loop), name="connections")
    before = [_prefix_cache(endpoint) for endpoint in endpoints]
    try:
        with scraping(endpoints, loop, recorder, experiment.run_dir):
            yield
    except BaseException:  # what a process cannot be asked for any more is not known
        if found := [io.lateness() for io in ios if isinstance(io, IoThread)]:
            record_lateness(found, loop, recorder)
        raise
    record_lateness([io.lateness() for io in ios], loop, recorder)
    for endpoint, then in zip(endpoints, before, strict=True):
        now = _prefix_cache(endpoint)
        known = "queries" in then and "queries" in now
        recorder.event(
            "prefix_cache", endpoint.name, 0.0, loop.now, intended=caching_intended,
            queried_tokens=now["queries"] - then["queries"] if known else None,
            hit_tokens=now["hits"] - then["hits"] if known else None,
        )  # fmt: skip


def needed(arrivals_s: Sequence[float], now_s: float) -> int:
    """How many of `arrivals_s` (ascending) come within LEAD_S of `now_s`."""
    return bisect_right(arrivals_s, now_s + LEAD_S) - bisect_right(arrivals_s, now_s)


async def keep_ahead(
    lines: Sequence[Line | FarLine], arrivals_s: Callable[[], Sequence[float]], loop: WallLoop
) -> None:
    """Has each line hold its part of the connections that the arrivals ahead need, until
    `arrivals_s` has none; in the run's loop. Which server a request goes to is the system's to say:
    parts are equal."""
    while ahead_s := arrivals_s():
        share = -(-needed(ahead_s, loop.now) // len(lines))
        for line in lines:
            line.want(share)
        await loop.sleep(LOOK_S)


def _ahead(experiment: Experiment) -> Callable[[], Sequence[float]]:
    """Tells when requests arrive, until the last has. Of sessions that changes with each answer."""
    records, loop = [*experiment.recorder.records.values()], experiment.loop
    if any(record.request.turn is not None for record in records):
        return lambda: sorted(r.request.arrival_s for r in records if r.status == "scheduled")
    arrivals_s = [record.request.arrival_s for record in records]
    return lambda: arrivals_s if loop.now < arrivals_s[-1] else ()


def _prefix_cache(endpoint: HttpEndpoint) -> dict[str, float]:
    """Its counters; empty where the server does not have both."""
    try:
        found = counters(endpoint.target.root, PREFIX_CACHE, endpoint.target.headers)
    except RunError:
        return {}
    return found if {"queries", "hits"} <= found.keys() else {}
