"""A few elastic instances to play with, on any engine: for tests, notebooks and the tutorial.

    with testbed.start(model, hardware, engine, num_instances=2) as bed:
        bed.run(story(bed))

What a run does with Hydra, schedule and client, without them: an engine, a clock, requests made by
hand. The tokens of a live bed are real (`Bed.tokens`).
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.clock import Loop
from harness.cluster import Cluster
from harness.configuration.checks import require
from harness.cost.hardware import Hardware
from harness.elastic.cluster import ElasticCluster
from harness.elastic.instance import ElasticInstance
from harness.engine_api import Engine, Experiment
from harness.model_spec import ModelSpec
from harness.placement import Elastic, Placement
from harness.records.record import Recorder
from harness.request import Batch, Request


@dataclass(slots=True)
class Bed:
    loop: Loop
    cluster: ElasticCluster
    recorder: Recorder
    model: ModelSpec
    given: Cluster  # what a system would be given; `cluster` is its elastic part
    made: int = 0  # requests, so far
    first: int = 0  # the number of this bed's first one

    @property
    def instances(self) -> list[ElasticInstance]:
        return self.cluster.instances

    def run(self, story: Coroutine[Any, Any, Any]) -> Any:
        """Runs `story` on the bed's clock; its result."""
        return self.loop.run(story, name="story")

    def request(self, prompt_tokens: int, output_tokens: int) -> Request:
        """A new request, known to the recorder. Its prompt depends on the bed's seed and its
        number, which is the order of asking: equal beds make equal prompts."""
        request = Request(self.made, self.loop.now, self.model.name, prompt_tokens, output_tokens)
        self.made += 1
        self.recorder.add([request])
        return request

    @property
    def requests(self) -> list[Request]:
        """All that were made, in order."""
        return [self.recorder.records[number].request for number in range(self.first, self.made)]

    def tokens(self, request: Request) -> list[int]:
        """The ids that a live engine generated for `request`, so far."""
        ids = request.answer
        return ids if isinstance(ids, list) else []


async def prefill(instance: Any, requests: Sequence[Request]) -> None:
    """Computes the prompts of `requests` on an instance or a pipeline, in one iteration."""
    for request in requests:
        _make_room(instance, request, request.known_tokens)
    chunks = [(request, request.known_tokens - request.computed_tokens) for request in requests]
    await instance.execute(Batch(chunks=chunks))


async def decode(
    instance: Any, requests: Sequence[Request], max_steps: int | None = None
) -> list[Request]:
    """One `execute` of those of `requests` that have not ended; those that have not ended then."""
    ready = [request for request in requests if not request.finished]
    for request in ready:
        _make_room(instance, request, request.computed_tokens + 1)
    if ready:
        await instance.execute(Batch(decodes=ready), max_steps=max_steps)
    return [request for request in ready if not request.finished]


def _make_room(instance: Any, request: Request, num_tokens: int) -> None:
    there_is = instance.kv.grow(request, num_tokens)
    require(there_is, f"{instance.name} has no room for request {request.request_id}")


async def finish(instance: Any, requests: Sequence[Request]) -> None:
    """Decodes `requests` to their ends."""
    while requests:
        requests = await decode(instance, requests)


@contextmanager
def started(
    engine: Engine, models: Mapping[str, ModelSpec], hardware: Hardware,
    placements: Sequence[Placement], recorder: Recorder, **how: Any,
) -> Iterator[tuple[Cluster, Loop]]:  # fmt: skip
    """The cluster of `placements` and its clock, without a run. `how`: further fields of an
    Experiment."""
    fields: dict[str, Any] = {"seed": 0, "scheduler": {}, "announce": lambda line: None}
    loop = engine.make_loop()
    with TemporaryDirectory(prefix="testbed-") as folder:
        experiment = Experiment(
            loop=loop, recorder=recorder, models=models, hardware=hardware,
            placements=placements, run_dir=Path(folder), **fields | how,
        )  # fmt: skip
        with engine.start(experiment) as cluster:
            yield cluster, loop


@contextmanager
def start(
    model: ModelSpec,
    hardware: Hardware,
    engine: Engine,
    num_instances: int,
    *,
    page_layers: int | None = None,
    resident: Mapping[int, range] | None = None,
    seed: int = 0,
) -> Iterator[Bed]:
    """`num_instances` instances of `model`, one after the other over the devices of `hardware`.
    `resident`: by the instance's number, the layers that it has at time 0, where not all."""
    placements = []
    for i in range(num_instances):
        elastic = Elastic(page_layers=page_layers, resident=(resident or {}).get(i))
        devices = range(i * model.tp, (i + 1) * model.tp)
        placements.append(Placement(devices=devices, model=model.name, elastic=elastic))
    require(
        num_instances * model.tp <= hardware.num_devices,
        f"{num_instances} instances of {model.tp} devices do not fit on hardware="
        f"{hardware.name}, which has {hardware.num_devices}",
    )
    models, recorder = {model.name: model}, Recorder([])
    with started(engine, models, hardware, placements, recorder, seed=seed) as (cluster, loop):
        assert cluster.elastic is not None
        yield Bed(loop, cluster.elastic, recorder, model, cluster)
