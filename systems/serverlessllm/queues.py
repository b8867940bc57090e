"""Which worker's queue a request joins, and at which place (`sim/scheduler.py` of Aegaeon's
artifact, which simulates both baselines). Pure functions.

ServerlessLLM: behind requests of the same model, else at the end of another worker's queue.
ServerlessLLM+: into a batch of the same model; batches are then sorted by their time left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.request import Request
from systems.serverlessllm.oracle import Oracle

Batches = list[list[Request]]


@dataclass(slots=True, frozen=True)
class Tail:
    """The end of a worker's queue."""

    model: str | None  # of the last request; of an empty queue: in place; None: never had a model
    run: int  # how many requests of `model` the queue ends with
    last_batch_s: float  # when the worker's last iteration ended; 0: it has had none
    queued: int = 0  # requests in the queue


def tail_of(queue: Sequence[Request], in_place: str | None, last_batch_s: float) -> Tail:
    """in_place: the model that is loaded on the worker."""
    if not queue:
        return Tail(in_place, 0, last_batch_s)
    model, run = queue[-1].model, 0
    for request in reversed(queue):
        if request.model != model:
            break
        run += 1
    return Tail(model, run, last_batch_s, len(queue))


def join(
    model: str, tails: Sequence[Tail], queue_slots: int, free_slots: int, *, shortest: bool = False
) -> int:
    """The index of the worker whose queue a request for `model` joins at the end.

    queue_slots: QS, slots of a worker for one model. free_slots: R. Workers whose queue ends with
    `model` have (queue_slots - run) free slots each. If these are `free_slots` or more together,
    the worker with the shortest run is taken. Else a worker that never had a model is taken, else
    the least recently used worker of another model, if there is one; with `shortest` the one with
    the fewest requests.
    """
    same = [i for i, tail in enumerate(tails) if tail.model == model]
    free = sum(max(0, queue_slots - tails[i].run) for i in same)
    if free < free_slots:
        empty = [i for i, tail in enumerate(tails) if tail.model is None]
        if empty:
            return empty[0]
        others = [i for i, tail in enumerate(tails) if tail.model != model]
        if others:
            return min(
                others, key=lambda i: (tails[i].queued if shortest else 0, tails[i].last_batch_s)
            )
    return min(same, key=lambda i: tails[i].run)


def batches_of(queue: Sequence[Request], queue_slots: int) -> Batches:
    """The queue as batches of one model each, with at most `queue_slots` requests, in order."""
    batches: Batches = []
    latest: dict[str, list[Request]] = {}  # {model: its last batch}; the ones before are full
    for request in queue:
        batch = latest.get(request.model)
        if batch is None or len(batch) == queue_slots:
            batch = latest[request.model] = []
            batches.append(batch)
        batch.append(request)
    return batches


def assign(request: Request, workers: Sequence[Batches], queue_slots: int) -> int:
    """Adds a request to the first batch of its model with room, else as a new batch to the worker
    with the fewest batches. Returns the worker's index."""
    for i, batches in enumerate(workers):
        for batch in batches:
            if batch[0].model == request.model and len(batch) < queue_slots:
                batch.append(request)
                return i
    least = min(range(len(workers)), key=lambda i: len(workers[i]))
    workers[least].append([request])
    return least


def shortest_first(
    batches: Batches, oracle: Oracle, *, by_phase: bool = True, preempts: bool = True
) -> list[Request]:
    """The requests of all batches, batches in the order of their time left.

    The time left is that of the pending prompts, if there are any, plus that of the first request's
    decoding. by_phase: without the decoding while a prompt is pending, as in the artifact.
    preempts: the first batch, which is running, may fall back; it then loses its KV.
    """

    def left_s(batch: list[Request]) -> float:
        pending = [request for request in batch if request.computed_tokens == 0]
        prefill_s = oracle.prefill_s(pending) if pending else 0.0
        return prefill_s if pending and by_phase else prefill_s + oracle.decode_s(batch[0])

    running = [] if preempts else batches[:1]
    ordered = [*running, *sorted(batches[len(running) :], key=left_s)]
    return [request for batch in ordered for request in batch]
