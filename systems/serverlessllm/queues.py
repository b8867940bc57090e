"""Which worker's queue a request joins, and where: Aegaeon's simulated baselines, as published.

ServerlessLLM: behind requests of its own model, else behind those of a worker taken over.
ServerlessLLM+: into a batch of its own model, and batches are sorted by what is left of them. The
rules are those of the simulator in Aegaeon's artifact (`sim/scheduler.py`). Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.request import Request
from systems.serverlessllm.oracle import Oracle

Batches = list[list[Request]]


@dataclass(slots=True, frozen=True)
class Tail:
    """The end of a worker's queue. `model`: of the last request, or, with no request, the one in
    place; None: it has never had any. `run`: how many requests of `model` the queue ends with."""

    model: str | None
    run: int
    last_batch_s: float  # when its last iteration ended; 0: it has had none


def tail_of(queue: Sequence[Request], in_place: str | None, last_batch_s: float) -> Tail:
    if not queue:
        return Tail(in_place, 0, last_batch_s)
    model, run = queue[-1].model, 0
    for request in reversed(queue):
        if request.model != model:
            break
        run += 1
    return Tail(model, run, last_batch_s)


def join(model: str, tails: Sequence[Tail], queue_slots: int, free_slots: int) -> int:
    """The worker whose queue a request for `model` joins, at the end (QS and R of the artifact).

    The one of its model with the shortest run. But where those together have fewer than
    `free_slots` slots of `queue_slots` each: an empty worker, else the least recently used one of
    another model, if there is one.
    """
    same = [i for i, tail in enumerate(tails) if tail.model == model]
    free = sum(max(0, queue_slots - tails[i].run) for i in same)
    if free < free_slots:
        empty = [i for i, tail in enumerate(tails) if tail.model is None]
        if empty:
            return empty[0]
        others = [i for i, tail in enumerate(tails) if tail.model != model]
        if others:
            return min(others, key=lambda i: tails[i].last_batch_s)
    return min(same, key=lambda i: tails[i].run)


def batches_of(queue: Sequence[Request], queue_slots: int) -> Batches:
    """The queue as batches of one model and at most `queue_slots` requests, in order."""
    batches: Batches = []
    latest: dict[str, list[Request]] = {}  # of each model: those before it are full
    for request in queue:
        batch = latest.get(request.model)
        if batch is None or len(batch) == queue_slots:
            batch = latest[request.model] = []
            batches.append(batch)
        batch.append(request)
    return batches


def assign(request: Request, workers: Sequence[Batches], queue_slots: int) -> int:
    """Adds a request to the first batch of its model with room, else as a new one to the worker
    with the fewest batches; returns the worker."""
    for i, batches in enumerate(workers):
        batch = _batch_for(request, batches, queue_slots)
        if batch is not None:
            batch.append(request)
            return i
    least = min(range(len(workers)), key=lambda i: len(workers[i]))
    workers[least].append([request])
    return least


def shortest_first(batches: Batches, oracle: Oracle) -> list[Request]:
    """The batches one after the other, the one with the least time left first.

    While a batch has prompts to prefill, that is all its time; then it is the decoding of its
    first request.
    """

    def left_s(batch: list[Request]) -> float:
        pending = [request for request in batch if request.computed_tokens == 0]
        if pending:
            return oracle.prefill_s(pending)
        return oracle.decode_s(batch[0])

    return [request for batch in sorted(batches, key=left_s) for request in batch]


def _batch_for(request: Request, batches: Batches, queue_slots: int) -> list[Request] | None:
    for batch in batches:
        if batch[0].model == request.model and len(batch) < queue_slots:
            return batch
    return None
