"""The devices that systems drive: models, instances, endpoints and the cluster they form.

`Instance` is the seam between a policy and the three engines: every operation is awaitable and
time passes inside it. `Endpoint` is a server that schedules by itself (vLLM, any OpenAI-
compatible one). Systems see nothing else: no wall clock, no metric, no hint of the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.device.instance import Instance
from harness.device.victim import Victim
from harness.elastic.cluster import ElasticCluster
from harness.model_spec import ModelSpec
from harness.placement import Placement, Profile
from harness.pooled.instance import PooledInstance
from harness.request import Request


class Endpoint(Protocol):
    """A server that schedules by itself; it stamps tokens, ends and failures as they arrive."""

    name: str
    models: Sequence[str]
    lost: bool  # it has died

    def submit(self, request: Request) -> None:
        """Sends `request`; never blocks."""
        ...


@dataclass(slots=True)
class Cluster:
    """What a system has to work with: what it asked for (`harness.placement`), brought up.

    Only one of `instances`, `pool`, `endpoints` and `elastic` is there.
    """

    models: Mapping[str, ModelSpec]  # by the name that requests carry
    instances: Sequence[Instance]
    pool: Sequence[PooledInstance]
    endpoints: Sequence[Endpoint]
    profile: Profile
    answer: Callable[[Request], None]  # the whole answer now, from no device: the null system's
    drop: Callable[[Request, str], None]  # gives a request up for the reason given: it has failed
    placements: Sequence[Placement]  # what each of `instances` or `pool` was asked for, in order
    elastic: ElasticCluster | None = None
    victims: Sequence[Victim] = ()  # each instance in the placements' order, for faults on purpose
    hosts: Sequence[Victim] = ()  # nodes that can die whatever the system, for the same
