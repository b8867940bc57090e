"""A small cluster with round numbers, and transfers run on it to the end."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf
from typing import Any

from hypothesis import strategies as st

from harness.clock import VirtualLoop
from harness.device.location import Location, dram, hbm, ssd
from harness.device.topology import Link, Topology
from harness.sim.network import Network
from tests.running import hardware_profile

NO_LATENCY = replace(
    hardware_profile("local"),
    num_devices=8,
    devices_per_node=4,
    devices_per_domain=2,
    nvlink_copy_bytes_per_s=200.0,
    nvlink_copy_latency_s=0.0,
    gpus_per_pcie_switch=2,
    pcie_bytes_per_s=100.0,
    pcie_latency_s=0.0,
    nic_bytes_per_s=50.0,
    nic_latency_s=0.0,
    devices_per_leaf=4,
    leaf_oversubscription=2.0,
    ssd_bytes_per_s=2.5,  # of each device: 10 of a node
    ssd_latency_s=0.0,
)


def cluster(**changes: Any) -> Topology:
    return Topology(replace(NO_LATENCY, **changes))


@dataclass(frozen=True)
class Send:
    """One transfer of a story."""

    src: Location
    dst: Location
    num_bytes: int
    start_s: float = 0.0
    priority: int = 0
    chunk_bytes: int | None = None


def run(topology: Topology, sends: Sequence[Send]) -> list[float]:
    """The time at which each of `sends` has arrived."""
    return run_watched(topology, sends, [])[0]


def run_watched(
    topology: Topology, sends: Sequence[Send], watch_s: Sequence[float]
) -> tuple[list[float], list[dict[Link, float]], dict[Link, float]]:
    """Arrival times, what each link had carried at each of `watch_s`, and at the end."""
    loop = VirtualLoop()
    network = Network(loop, topology)
    arrived = [inf] * len(sends)
    links = {link for send in sends for link in topology.path(send.src, send.dst).links}
    seen: list[dict[Link, float]] = []

    def carried() -> dict[Link, float]:
        return {link: network.fluid.carried_bytes(link) for link in links}

    async def one(i: int, send: Send) -> None:
        await loop.sleep_until(send.start_s)
        await network.transfer(
            send.src,
            send.dst,
            send.num_bytes,
            priority=send.priority,
            chunk_bytes=send.chunk_bytes,
        )
        arrived[i] = loop.now

    async def watch() -> None:
        for time_s in watch_s:
            await loop.sleep_until(time_s)
            seen.append(carried())

    async def main() -> dict[Link, float]:
        jobs: list[Coroutine[Any, Any, None]] = [one(i, send) for i, send in enumerate(sends)]
        tasks = [loop.spawn(job, name=f"job {i}") for i, job in enumerate([*jobs, watch()])]
        for task in tasks:
            await loop.wait(task.finished)
        return carried()

    final = loop.run(main())
    return arrived, seen, final


def exact_rates(flows: Sequence[tuple[int, Sequence[Link]]]) -> list[Fraction]:
    """Max–min rates by the definition, in exact numbers: all grow together until one is stuck."""
    left = {link: Fraction(link.bytes_per_s) for _, links in flows for link in links}
    rates = [Fraction(0)] * len(flows)
    for priority in sorted({priority for priority, _ in flows}, reverse=True):
        growing = {i for i, (own, _) in enumerate(flows) if own == priority}
        while growing:
            crossing = {link: sum(link in flows[i][1] for i in growing) for link in left}
            step = min(left[link] / n for link, n in crossing.items() if n)
            for link, n in crossing.items():
                left[link] -= n * step
            for i in growing:
                rates[i] += step
            growing = {i for i in growing if all(left[link] > 0 for link in flows[i][1])}
    return rates


def exact_arrivals(topology: Topology, sends: Sequence[Send]) -> list[float]:
    """Arrival times of unchunked transfers between distinct pairs of places.

    All rates anew at every start and end, in exact numbers, with none of the simulator's shortcuts.
    """
    paths = [topology.path(send.src, send.dst) for send in sends]
    begins = [
        Fraction(send.start_s + path.latency_s) for send, path in zip(sends, paths, strict=True)
    ]
    left = [Fraction(send.num_bytes) for send in sends]
    ends: list[float] = [inf] * len(sends)
    now = min(begins)
    while inf in ends:
        active = [i for i in range(len(sends)) if begins[i] <= now and ends[i] == inf]
        rates = exact_rates([(sends[i].priority, paths[i].links) for i in active])
        steps = [left[i] / rate for i, rate in zip(active, rates, strict=True) if rate]
        steps += [begin - now for begin in begins if begin > now]
        now += min(steps)
        for i, rate in zip(active, rates, strict=True):
            left[i] -= rate * min(steps)
            if left[i] == 0:
                ends[i] = float(now)
    return ends


@st.composite
def topologies(draw: st.DrawFn, latency: bool = True) -> Topology:
    rate = st.sampled_from([10.0, 25.0, 64.0, 200.0])
    wait = st.sampled_from([0.0, 0.125, 1.0]) if latency else st.just(0.0)
    return cluster(
        num_devices=4 * draw(st.integers(2, 3)),
        devices_per_domain=draw(st.sampled_from([1, 2, 4, 8])),
        nvlink_copy_bytes_per_s=draw(rate),
        nvlink_copy_latency_s=draw(wait),
        gpus_per_pcie_switch=draw(st.sampled_from([1, 2, 4])),
        pcie_bytes_per_s=draw(rate),
        pcie_latency_s=draw(wait),
        nic_bytes_per_s=draw(rate),
        nic_latency_s=draw(wait),
        devices_per_leaf=draw(st.sampled_from([2, 4, 8])),
        leaf_oversubscription=draw(st.sampled_from([1.0, 2.0, 4.0])),
        ssd_bytes_per_s=draw(rate) / 4,
        ssd_latency_s=draw(wait),
    )


PLACES = [hbm(n, d) for n in range(2) for d in range(4)] + [dram(0), dram(1), ssd(0), ssd(1)]
PAIRS = [(src, dst) for src in PLACES for dst in PLACES if src != dst]


@st.composite
def send_lists(
    draw: st.DrawFn, distinct_pairs: bool = False, chunks: bool = True, max_size: int = 8
) -> list[Send]:
    pairs = draw(
        st.lists(
            st.sampled_from(PAIRS if distinct_pairs else PAIRS[::11]),
            min_size=1,
            max_size=max_size,
            unique=distinct_pairs,
        )
    )
    return [
        Send(
            src,
            dst,
            num_bytes=draw(st.integers(1, 1000)),
            start_s=draw(st.integers(0, 20)) / 4,
            priority=draw(st.integers(0, 2)),
            chunk_bytes=draw(st.sampled_from([None, 100, 333])) if chunks else None,
        )
        for src, dst in pairs
    ]
