"""Iterations as serving makes them: a synthetic schedule through policy, client and engine.

A grid of cells repeats one batch on an idle harness. Serving does not: it mixes prompts with
decodes, ends decodes at arrivals, hardly ever sees the same batch twice, and shares the machine
with its own client.
Lengths are log-uniform and arrivals Poisson: no trace is touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf

import numpy as np

from harness.calibrate import zoo
from harness.calibrate.profiles import Floats
from harness.clock import Event, Loop
from harness.cluster import Cluster
from harness.configuration.config import build
from harness.device.instance import Instance
from harness.records.record import Recorder
from harness.request import Batch, Request
from harness.running.client import Client
from harness.system import System

LOADS = (0.3, 0.6, 0.9)  # of the rate that a burst is completed at
# Of all mixes and loads, one after the other: each has batches of its own, and were it served once,
# what the machine did just then would stay in the terms of such batches.
ROUNDS = 3
# (Shortest, longest) prompt and output: of work that is mostly prompts, and mostly decodes. The
# first alone hardly ever has more than ten decodes in a batch.
MIXES = (((8, 2048), (2, 128)), ((8, 256), (16, 256)))
Mix = tuple[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Iterations:
    """One entry per `execute`, all columns of equal length."""

    tokens: Floats  # computed in the first iteration, the decodes' included
    pairs: Floats  # of a query of a chunk and a key it attends to
    chunks: Floats
    decodes: Floats
    context_tokens: Floats  # read in the first iteration by decodes, and before chunks
    steps: Floats
    seconds: Floats  # from the end of the one before, where requests were waiting then


class Timed:
    """An instance whose executes are written down; of the rest, what a replica needs."""

    def __init__(self, instance: Instance, loop: Loop) -> None:
        self.name, self.model, self.kv = instance.name, instance.model, instance.kv
        self.evict, self.settle = instance.evict, instance.settle
        self._instance, self._loop = instance, loop
        self.ended_s = -inf
        self.rows: list[tuple[float, ...]] = []

    async def execute(
        self,
        batch: Batch,
        *,
        max_steps: int | None = None,
        until: float = inf,
        stop: Event | None = None,
    ) -> int:
        work = _work(batch)
        waited = any(r.arrival_s <= self.ended_s for r in chain(batch.decodes, _prompts(batch)))
        start_s = self.ended_s if waited else self._loop.now
        steps = await self._instance.execute(batch, max_steps=max_steps, until=until, stop=stop)
        self.ended_s = self._loop.now
        self.rows.append((*work, steps, self.ended_s - start_s))
        return steps


def _prompts(batch: Batch) -> Iterator[Request]:
    return (request for request, _ in batch.chunks)


def _work(batch: Batch) -> tuple[float, ...]:
    chunks = [(request.computed_tokens, n) for request, n in batch.chunks]
    pairs = sum(n * before + n * (n + 1) / 2 for before, n in chunks)
    context = sum(r.computed_tokens + 1 for r in batch.decodes) + sum(b for b, _ in chunks)
    return batch.num_tokens, pairs, len(chunks), len(batch.decodes), context


def served(
    cluster: Cluster, loop: Loop, recorder: Recorder, model: str, num_requests: int
) -> Iterations:
    """In each of ROUNDS, and of each mix, serves `num_requests` at once, then as many at each of
    LOADS of the rate at which those were completed; returns every execute."""
    timed = Timed(cluster.instances[0], loop)
    arranged = replace(cluster, instances=[timed])
    rng, ids = np.random.default_rng(0), iter(range(10**6, 10**9))

    def once(mix: Mix, rate_per_s: float) -> float:
        requests = schedule(rng, ids, model, mix, num_requests, rate_per_s)
        recorder.add(requests)
        timed.ended_s = -inf  # the clock starts again
        return play(requests, arranged, loop, recorder)

    for mix in MIXES * ROUNDS:
        capacity_per_s = num_requests / once(mix, inf)
        for load in LOADS:
            once(mix, load * capacity_per_s)
    return Iterations(*np.array(timed.rows, float).T)


def play(requests: Sequence[Request], cluster: Cluster, loop: Loop, recorder: Recorder) -> float:
    """Serves `requests`, whose records are there, and returns the seconds that they took."""
    policy: System = build(zoo.node("system/vllm.yaml"), "system", loop=loop, cluster=cluster)
    client = Client(Client.Config(drain_s=600), loop=loop, recorder=recorder, system=policy)

    async def main() -> float:
        loop.spawn(policy.serve(), name="system")
        await client.play(requests)
        return loop.now

    return float(loop.run(main()))


def schedule(
    rng: np.random.Generator,
    ids: Iterator[int],
    model: str,
    mix: Mix,
    num_requests: int,
    rate_per_s: float,
) -> Sequence[Request]:
    """`num_requests`, Poisson at `rate_per_s`; infinite: all at time 0."""
    arrivals = np.cumsum(rng.exponential(1 / rate_per_s, num_requests))
    prompts, outputs = (
        np.exp(rng.uniform(np.log(low), np.log(high), num_requests)).astype(int)
        for low, high in mix
    )
    return [
        Request(next(ids), float(arrival_s), model, int(prompt), int(output))
        for arrival_s, prompt, output in zip(arrivals, prompts, outputs, strict=True)
    ]
