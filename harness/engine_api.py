"""What an engine is to the harness: it picks the clock and brings up a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.clock import Loop
from harness.cluster import Cluster, Endpoint
from harness.cost.hardware import Hardware
from harness.cost.profile import HardwareProfile
from harness.device.instance import Instance
from harness.device.victim import Victim
from harness.elastic.cluster import ElasticCluster
from harness.model_spec import ModelSpec
from harness.placement import Placement
from harness.pooled.instance import PooledInstance
from harness.records.record import Chunk, Recorder
from harness.request import Request
from harness.system import ServerPlugin


@dataclass(slots=True)
class Experiment:
    """What an engine needs to know of the run it serves."""

    loop: Loop
    recorder: Recorder
    models: Mapping[str, ModelSpec]  # by the name that requests carry
    hardware: Hardware
    placements: Sequence[Placement]  # the instances that the system asks for
    run_dir: Path  # exists; logs go here
    seed: int
    scheduler: Mapping[str, Any]  # the system's values, for servers that schedule by themselves
    announce: Callable[[str], None]  # tells the user one line of start-up progress
    # What the system puts into servers; None: they schedule by themselves
    plugin: Callable[[], AbstractContextManager[ServerPlugin]] | None = None
    concurrency: int | None = None  # requests in flight; None: they are sent as they arrive
    processes: int | None = None  # that read HTTP answers; None: a thread of the run's own

    def cluster(
        self,
        *,
        instances: Sequence[Instance] = (),
        pool: Sequence[PooledInstance] = (),
        endpoints: Sequence[Endpoint] = (),
        elastic: ElasticCluster | None = None,
        profile: HardwareProfile | None = None,
        victims: Sequence[Victim] = (),
    ) -> Cluster:
        """profile: what policies predict by, where it is not the hardware's alone."""
        return Cluster(
            self.models, instances, pool, endpoints, profile or HardwareProfile(self.hardware),
            self._answer, self.recorder.failed, self.placements, elastic, victims,
        )  # fmt: skip

    def _answer(self, request: Request) -> None:
        """Answers with all of `request`'s tokens, in one chunk, now."""
        self.recorder.segment([request], Chunk(self.loop.now, request.output_tokens), "none")
        request.generated_tokens = request.output_tokens
        self.recorder.completed(request)


def kv_blocks_by_model(instances: Iterable[tuple[str, int]]) -> dict[str, int]:
    """What a manifest says of the KV blocks, from each instance's (model, blocks): the blocks of
    one instance by the model's name; the fewest, where instances of a model differ."""
    fewest: dict[str, int] = {}
    for model, num_blocks in instances:
        fewest[model] = min(num_blocks, fewest.get(model, num_blocks))
    return fewest


class Engine(Protocol):
    """Built as `Engine(config)`. `name` is what every figure says it came from."""

    name: str  # sim, torch, vllm, openai or none
    has_devices: bool  # False: it serves only a system that asks for no instance
    devices_known: bool  # False: they are a remote endpoint's, not the hardware profile's

    def make_loop(self) -> Loop: ...

    def start(self, experiment: Experiment) -> AbstractContextManager[Cluster]:
        """Brings the cluster up and yields it ready; on exit, however it comes, nothing of it
        is left running. Raises RunError with the log's tail when it does not come up."""
        ...

    def resolved(self) -> Mapping[str, Any]:
        """Values the engine settled by itself, known after `start`, e.g. devices, num_kv_blocks
        (`kv_blocks_by_model`)."""
        ...
