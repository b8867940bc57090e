"""Grouped FCFS: what Algorithm 1 counts. test_dispatch.py holds the real dispatch to it."""

from __future__ import annotations

from typing import Any

import pytest

from harness.request import Request
from systems.aegaeon.estimate import Estimator
from systems.aegaeon.prefill import JobQueue, joinable
from tests.unit.aegaeon.trial import Trial, requests_of

MAX_GPSIZE = 3
SWITCH_S, PREFILL_S = {"a": 2.0, "b": 3.0, "c": 5.0}, 1.0


class Estimates(Estimator):
    def __init__(self) -> None:
        """Knows the times above."""

    def switch_s(self, model: str) -> float:
        return SWITCH_S[model]

    def prefill_s(self, model: str, prompt_tokens: int) -> float:
        return PREFILL_S


def queued(*models: str) -> JobQueue:
    """A group of one request for each of `models`."""
    queue = JobQueue(Estimates())
    for number, model in enumerate(models):
        queue.add(Request(number, 0.0, model, 10, 10), None)
    return queue


def test_a_group_that_was_full_stays_closed_and_the_artifacts_opens_again() -> None:
    queue = queued()
    for number in range(MAX_GPSIZE):
        found = joinable([queue], "a", MAX_GPSIZE, accumulated=True)
        queue.add(Request(number, 0.0, "a", 10, 10), None if found is None else found[1])
    [group] = queue.groups
    queue.pop(group)
    assert joinable([queue], "a", MAX_GPSIZE, accumulated=True) is None
    assert joinable([queue], "a", MAX_GPSIZE, accumulated=False) == (0, group)


def test_pending_time_counts_a_switch_only_where_the_model_changes() -> None:
    queue = queued("a", "a", "b")
    assert queue.pending_time_s(None) == 2 + 3 + 3 * PREFILL_S
    assert queue.pending_time_s("a") == 3 + 3 * PREFILL_S
    for _ in range(2):
        queue.pop(queue.groups[0])
    assert queue.pending_time_s("a") == 3 + PREFILL_S
    assert queue.pending_time_s("b") == PREFILL_S


@pytest.mark.parametrize(("variant", "load"), [("paper", 3.0 + PREFILL_S), ("artifact", 1.0)])
def test_the_load_is_the_papers_time_or_the_codes_number_of_requests(
    variant: str, load: float
) -> None:
    found = Trial(f"system.variant={variant}", num_instances=2)
    found.serve(requests_of((0.0, "narrow-0", 5, 1)))
    assert found.system._variant.load(queued("b"), "a") == load


@pytest.mark.parametrize(("variant", "expected"), [("paper", [1]), ("artifact", [])])
def test_only_the_paper_counts_the_request_that_runs(variant: str, expected: list[int]) -> None:
    """The queue as an arrival would find it while the only request is being prefilled."""
    seen: list[list[int]] = []

    def watch(system: Any) -> None:
        prefiller = system._prefillers[0]

        async def look() -> None:
            while prefiller.running is None:
                await system._loop.sleep(1e-4)
            seen.append([len(group.pending) for group in prefiller.queue])
            assert [r.request_id for r in prefiller.held] == [0]

        system._loop.spawn(look(), name="look")

    trial = Trial(f"system.variant={variant}", num_instances=2, watch=watch)
    trial.serve(requests_of((0.0, "narrow-0", 50, 5)))
    assert seen == [expected]
