"""Faults on purpose: instances or whole hosts that die at a given time, on any engine that can
lose one.

faults.kill=[{instance: 1, at_s: 20}, {host: 0, at_s: 30}]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import isfinite

from harness.clock import Loop
from harness.cluster import Cluster
from harness.configuration.checks import require
from harness.elastic.cluster import ElasticCluster
from harness.errors import UsageError


@dataclass(kw_only=True, slots=True)
class Kill:
    at_s: float  # since the run began
    instance: int | None = None  # in the order in which the system places them, from 0
    host: int | None = None  # a node, with its instances and what its memory holds, from 0

    def __post_init__(self) -> None:
        one = (self.instance is None) != (self.host is None)
        both = f"instance={self.instance}, host={self.host}"
        require(one, f"{both}: one of the two is to be a number")
        finite = isfinite(self.at_s) and self.at_s >= 0
        require(finite, f"at_s={self.at_s} must be a finite time of at least 0 s")


@dataclass(kw_only=True, slots=True)
class Faults:
    kill: list[Kill] = field(default_factory=list)


def start(faults: Faults, cluster: Cluster, loop: Loop) -> None:
    """Has `faults` happen in their time. UsageError where the cluster cannot lose what is named."""
    if not faults.kill:
        return
    if cluster.elastic is None:
        raise UsageError(
            "faults.kill needs a system whose instances may die, which this one's may not; set "
            "faults.kill=[]"
        )
    for kill in faults.kill:
        die, name = _death(kill, cluster.elastic)
        loop.spawn(_at(kill.at_s, die, loop), name=f"kill {name}")
    hosts = {kill.host for kill in faults.kill if kill.host is not None}
    all_of_them = hosts >= set(cluster.elastic.hosts)
    require(not all_of_them, f"faults.kill names all {len(hosts)} hosts: leave one")


def _death(kill: Kill, cluster: ElasticCluster) -> tuple[Callable[[], None], str]:
    """What ends whom."""
    number, host = kill.instance, kill.host
    if number is not None:
        last = len(cluster.instances) - 1
        known = 0 <= number <= last
        require(known, f"faults.kill names instance {number}; valid: 0 to {last}")
        victim = cluster.instances[number]
        return partial(cluster.kill, victim), victim.name
    assert host is not None
    require(
        cluster.on_host_lost is not None,
        f"faults.kill names host {host}, but this system's hosts cannot fail; name its "
        "instances, or choose +system=blitzscale",
    )
    last = len(cluster.hosts) - 1
    require(host in cluster.hosts, f"faults.kill names host {host}; valid: 0 to {last}")
    return partial(cluster.kill_host, host), f"host {host}"


async def _at(at_s: float, die: Callable[[], None], loop: Loop) -> None:
    await loop.sleep_until(at_s)
    die()
