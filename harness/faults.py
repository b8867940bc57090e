"""Faults on purpose: instances that die at a given time, on any engine that can lose one.

faults.kill=[{instance: 1, at_s: 20}]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite

from harness.clock import Loop
from harness.cluster import Cluster
from harness.device.elastic import ElasticInstance
from harness.device.elastic_cluster import ElasticCluster
from harness.errors import UsageError


@dataclass(kw_only=True, slots=True)
class Kill:
    instance: int  # in the order in which the system places them, from 0
    at_s: float  # since the run began

    def __post_init__(self) -> None:
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
        victim = _instance(kill.instance, cluster.elastic.instances)
        loop.spawn(_kill(kill.at_s, victim, cluster.elastic, loop), name=f"kill {victim.name}")


def _instance(number: int, instances: Sequence[ElasticInstance]) -> ElasticInstance:
    if not 0 <= number < len(instances):
        raise UsageError(f"faults.kill names instance {number}; valid: 0 to {len(instances) - 1}")
    return instances[number]


async def _kill(at_s: float, victim: ElasticInstance, cluster: ElasticCluster, loop: Loop) -> None:
    await loop.sleep_until(at_s)
    cluster.kill(victim)
