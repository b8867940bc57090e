"""Grouped FCFS, against Algorithm 1 read line by line."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.pool.instance import PooledInstance
from harness.request import Batch, Request
from systems.aegaeon.prefill import Group, JobQueue, joinable, least, pending_time_s
from tests.unit.aegaeon.world import World, requests_of

MAX_GPSIZE = 3
SWITCH_S, PREFILL_S = {"a": 2.0, "b": 3.0, "c": 5.0}, 1.0

events = st.lists(
    st.one_of(st.sampled_from(["a", "b", "c"]), st.integers(0, 2)), min_size=1, max_size=60
)  # an arrival for a model, or an instance that executes its next request


class Estimates:
    def switch_s(self, model: str) -> float:
        return SWITCH_S[model]

    def prefill_s(self, model: str, prompt_tokens: int) -> float:
        return PREFILL_S


def algorithm_1(queues: list[list[dict[str, Any]]], model: str, request: int) -> None:
    """Lines 2 to 13, as printed."""
    min_load, chosen = float("inf"), queues[0]
    for queue in queues:
        for group in queue:
            if group["model"] == model and group["size"] < MAX_GPSIZE:
                group["size"] += 1
                group["jobs"].append(request)
                return
        load = sum(SWITCH_S[g["model"]] + PREFILL_S * len(g["jobs"]) for g in queue)
        for before, g in zip([{"model": None}, *queue], queue, strict=False):
            if before["model"] == g["model"]:
                load -= SWITCH_S[g["model"]]
        if load < min_load:
            min_load, chosen = load, queue
    chosen.append({"model": model, "size": 1, "jobs": [request]})


@given(events)
def test_dispatch_and_order_are_those_of_algorithm_1(story: list[str | int]) -> None:
    ours: list[JobQueue] = [deque(), deque(), deque()]
    theirs: list[list[dict[str, Any]]] = [[], [], []]
    for number, event in enumerate(story):
        if isinstance(event, str):
            dispatch(ours, Request(number, 0.0, event, 10, 10))
            algorithm_1(theirs, event, number)
        elif theirs[event]:
            front = theirs[event][0]
            expected = front["jobs"].pop(0)
            if not front["jobs"]:
                theirs[event].pop(0)
            assert execute(ours[event]).request_id == expected
        assert contents(ours) == [
            [(g["model"], g["size"], g["jobs"]) for g in queue] for queue in theirs
        ]


def dispatch(queues: list[JobQueue], request: Request) -> None:
    found = joinable(queues, request.model, MAX_GPSIZE, accumulated=True)
    if found is None:
        loads = [pending_time_s(queue, None, Estimates()) for queue in queues]  # type: ignore[arg-type]
        queue, group = queues[least(loads)], Group(request.model)
        queue.append(group)
    else:
        group = found[1]
    group.add(request)


def execute(queue: JobQueue) -> Request:
    request = queue[0].pending.popleft()
    if not queue[0].pending:
        queue.popleft()
    return request


def contents(queues: list[JobQueue]) -> list[list[tuple[str, int, list[int]]]]:
    return [
        [(g.model, g.size, [r.request_id for r in g.pending]) for g in queue] for queue in queues
    ]


def test_a_group_that_was_full_stays_closed_and_the_artifacts_opens_again() -> None:
    group = Group("a")
    for number in range(MAX_GPSIZE):
        group.add(Request(number, 0.0, "a", 10, 10))
    group.pending.popleft()
    assert joinable([deque([group])], "a", MAX_GPSIZE, accumulated=True) is None
    assert joinable([deque([group])], "a", MAX_GPSIZE, accumulated=False) == (0, group)


def test_pending_time_counts_a_switch_only_where_the_model_changes() -> None:
    queue: JobQueue = deque()
    for model in ("a", "a", "b"):
        queue.append(Group(model))
        queue[-1].add(Request(len(queue), 0.0, model, 10, 10))
    assert pending_time_s(queue, None, Estimates()) == 2 + 3 + 3 * PREFILL_S  # type: ignore[arg-type]
    assert pending_time_s(queue, "a", Estimates()) == 3 + 3 * PREFILL_S  # type: ignore[arg-type]


@pytest.mark.parametrize(("variant", "expected"), [("paper", [1]), ("artifact", [])])
def test_only_the_paper_counts_the_request_that_runs(
    variant: str, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue as an arrival would find it while the only request is being prefilled."""
    world = World(f"system.variant={variant}", num_instances=2)
    seen: list[list[int]] = []
    execute = PooledInstance.execute

    async def look(self: PooledInstance, batch: Batch, **limits: Any) -> None:
        prefiller = world.system._prefillers[0]
        if batch.chunks:
            seen.append([len(group.pending) for group in prefiller.queue])
            assert [r.request_id for r in prefiller.held] == [0]
        await execute(self, batch, **limits)

    monkeypatch.setattr(PooledInstance, "execute", look)
    world.serve(requests_of((0.0, "narrow-0", 50, 5)))
    assert seen == [expected]
