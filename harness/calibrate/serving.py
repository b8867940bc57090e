"""Iterations as serving makes them: a synthetic schedule through policy, client and engine.

A grid of cells repeats one batch on an idle harness. Serving does not: it mixes prompts with
decodes, ends decodes at arrivals, hardly ever sees the same batch twice, and shares the machine
with its own client.
Lengths are log-uniform and arrivals Poisson: no trace is touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count
from math import inf
from typing import Any, NamedTuple

import numpy as np

from harness.calibrate import zoo
from harness.calibrate.profiles import Floats
from harness.clock import Loop
from harness.cluster import Cluster
from harness.configuration.config import build
from harness.cost.hardware import Hardware
from harness.device.instance import Instance
from harness.engine_api import Engine
from harness.model_spec import ModelSpec
from harness.placement import dedicated
from harness.records.record import Recorder
from harness.request import Batch, Request
from harness.running.client import Client
from harness.running.testbed import started
from harness.system import System

LOADS = (0.3, 0.6, 0.9)  # of the rate that a burst is completed at
# Of all mixes and loads, one after the other: each has batches of its own, and were it served once,
# what the machine did just then would stay in the terms of such batches.
ROUNDS = 3
# (Shortest, longest) prompt and output: of work that is mostly prompts, and mostly decodes. The
# first alone hardly ever has more than ten decodes in a batch.
MIXES = (((8, 2048), (2, 128)), ((8, 256), (16, 256)))
Mix = tuple[tuple[int, int], tuple[int, int]]
Phase = tuple[list[Request], float]  # its load, as a share of the rate of the burst before
NAME = "default"  # of the model


class Work(NamedTuple):
    """What one iteration computed, as the columns of `Iterations`."""

    tokens: int
    pairs: float
    chunks: int
    decodes: int
    context_tokens: int

    @classmethod
    def of(cls, chunks: Sequence[tuple[int, int]], num_decodes: int, context_tokens: int) -> Work:
        """`chunks`: (tokens computed before, tokens) of each prompt; `context_tokens`: that the
        decodes read."""
        return cls(
            tokens=num_decodes + sum(n for _, n in chunks),
            pairs=sum(n * before + n * (n + 1) / 2 for before, n in chunks),
            chunks=len(chunks),
            decodes=num_decodes,
            context_tokens=context_tokens + sum(before for before, _ in chunks),
        )


class Iterations(NamedTuple):
    """One entry per `execute`, all columns of equal length: those of `Work`, and two more."""

    tokens: Floats  # computed in the first iteration, the decodes' included
    pairs: Floats  # of a query of a chunk and a key it attends to
    chunks: Floats
    decodes: Floats
    context_tokens: Floats  # read in the first iteration by decodes, and before chunks
    steps: Floats
    seconds: Floats  # from the end of the one before, where requests were waiting then


def running(
    engine: Engine, spec: ModelSpec, hardware: Hardware, recorder: Recorder, name: str = NAME,
    **how: Any,
) -> AbstractContextManager[tuple[Cluster, Loop]]:  # fmt: skip
    """`engine` with instances of `spec`, which requests call `name`. `how`: as in `started`."""
    models = {name: spec}
    return started(engine, models, hardware, dedicated(models, hardware), recorder, **how)


class Timed:
    """An instance whose executes are written down; of the rest, what a replica needs."""

    def __init__(self, instance: Instance, loop: Loop) -> None:
        self.name, self.model, self.kv = instance.name, instance.model, instance.kv
        self.evict, self.settle = instance.evict, instance.settle
        self._instance, self._loop = instance, loop
        self.ended_s = -inf
        self.rows: list[tuple[float, ...]] = []

    async def execute(self, batch: Batch, **how: Any) -> int:
        """`how`: as in `Executor.execute`."""
        chunks = [(request.computed_tokens, n) for request, n in batch.chunks]
        read = sum(request.computed_tokens + 1 for request in batch.decodes)
        work = Work.of(chunks, len(batch.decodes), read)
        waited = any(request.arrival_s <= self.ended_s for request in batch.requests)
        start_s = self.ended_s if waited else self._loop.now
        steps = await self._instance.execute(batch, **how)
        self.ended_s = self._loop.now
        self.rows.append((*work, steps, self.ended_s - start_s))
        return steps


def served(cluster: Cluster, loop: Loop, recorder: Recorder, num_requests: int) -> Iterations:
    """Every execute while all of `schedules` is served."""
    timed = Timed(cluster.instances[0], loop)
    phases = schedules(num_requests)
    recorder.add([request for requests, _ in phases for request in requests])
    for _ in play_all(phases, replace(cluster, instances=[timed]), loop, recorder):
        timed.ended_s = -inf  # the clock starts again
    return Iterations(*np.array(timed.rows, float).T)


def schedules(num_requests: int) -> list[Phase]:
    """The requests of each mix, ROUNDS times: at once, then at each of LOADS of one request a
    second, which `play_all` scales to the rate that the burst was completed at."""
    rng, ids = np.random.default_rng(0), count(10**6)
    return [
        (schedule(rng, ids, mix, num_requests, load), load)
        for mix in MIXES * ROUNDS
        for load in (inf, *LOADS)
    ]


def play_all(
    phases: Iterable[Phase], cluster: Cluster, loop: Loop, recorder: Recorder
) -> Iterator[tuple[Sequence[Request], float]]:
    """Serves phase after phase, and yields the seconds that each took."""
    capacity_per_s = 1.0
    for requests, load in phases:
        for request in requests:
            request.arrival_s /= capacity_per_s
        seconds = play(requests, cluster, loop, recorder)
        if load == inf:
            capacity_per_s = len(requests) / seconds
        yield requests, seconds


def play(requests: Sequence[Request], cluster: Cluster, loop: Loop, recorder: Recorder) -> float:
    """Serves `requests`, whose records are there, and returns the seconds that they took."""
    policy: System = build(zoo.node("system/vllm.yaml"), "system", loop=loop, cluster=cluster)
    client = Client(600, loop=loop, recorder=recorder, system=policy)

    async def main() -> float:
        loop.spawn(policy.serve(), name="system")
        await client.play(requests)
        return loop.now

    return float(loop.run(main()))


def schedule(
    rng: np.random.Generator, ids: Iterator[int], mix: Mix, num_requests: int, rate_per_s: float
) -> list[Request]:
    """`num_requests`, Poisson at `rate_per_s`; infinite: all at time 0."""
    arrivals = np.cumsum(rng.exponential(1 / rate_per_s, num_requests))
    prompts, outputs = (
        np.exp(rng.uniform(np.log(low), np.log(high), num_requests)).astype(int)
        for low, high in mix
    )
    return [
        Request(next(ids), float(arrival_s), NAME, int(prompt), int(output))
        for arrival_s, prompt, output in zip(arrivals, prompts, outputs, strict=True)
    ]
