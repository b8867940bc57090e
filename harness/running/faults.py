"""Faults on purpose: instances or whole hosts that die at a given time, on any engine that can
lose one.

faults.kill=[{instance: 1, at_s: 20}, {host: 0, at_s: 30}]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isfinite

from harness.clock import Loop
from harness.cluster import Cluster
from harness.elastic.cluster import ElasticCluster
from harness.elastic.instance import ElasticInstance
from harness.errors import UsageError


@dataclass(kw_only=True, slots=True)
class Kill:
    at_s: float  # since the run began
    instance: int | None = None  # in the order in which the system places them, from 0
    host: int | None = None  # a node, with its instances and what its memory holds, from 0

    def __post_init__(self) -> None:
        if (self.instance is None) == (self.host is None):
            raise ValueError(
                f"instance={self.instance}, host={self.host}: one of the two is to be a number"
            )
        if not (isfinite(self.at_s) and self.at_s >= 0):
            raise ValueError(f"at_s={self.at_s} must be a finite time of at least 0 s")


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
        if kill.instance is not None:
            victim = _instance(kill.instance, cluster.elastic.instances)
            die, name = partial(cluster.elastic.kill, victim), victim.name
        else:
            assert kill.host is not None
            _check_host(kill.host, cluster.elastic)
            die, name = partial(cluster.elastic.kill_host, kill.host), f"host {kill.host}"
        loop.spawn(_at(kill.at_s, die, loop), name=f"kill {name}")
    hosts = {kill.host for kill in faults.kill if kill.host is not None}
    if hosts >= set(cluster.elastic.hosts):
        raise UsageError(f"faults.kill names all {len(hosts)} hosts: leave one")


def _instance(number: int, instances: Sequence[ElasticInstance]) -> ElasticInstance:
    if not 0 <= number < len(instances):
        raise UsageError(f"faults.kill names instance {number}; valid: 0 to {len(instances) - 1}")
    return instances[number]


def _check_host(node: int, cluster: ElasticCluster) -> None:
    if cluster.on_host_lost is None:
        raise UsageError(
            f"faults.kill names host {node}, but this system's hosts cannot fail; name its "
            "instances, or choose +system=blitzscale"
        )
    if node not in cluster.hosts:
        raise UsageError(f"faults.kill names host {node}; valid: 0 to {len(cluster.hosts) - 1}")


async def _at(at_s: float, die: Callable[[], None], loop: Loop) -> None:
    await loop.sleep_until(at_s)
    die()
