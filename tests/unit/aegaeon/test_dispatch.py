"""Which instance a request goes to, and behind whom, as requests reach the real system.

Line numbers are those of Algorithm 1 and 2 as printed. What it watches is kept here in lists of its
own; only estimates of times (A.2) and the KV region's size are the system's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.request import Request
from tests.examples import examples
from tests.unit.aegaeon.trial import Trial, requests_of, system_node

MODELS = ["narrow-0", "wide-1", "deep-2", "narrow-3"]
MAX_GPSIZE = 3  # so that short stories fill groups
TIE_S = 1e-9  # sums of the same times in another order

stories = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from(MODELS), st.integers(1, 300)),
    min_size=1,
    max_size=40,
)  # (milliseconds since the last arrival, model, prompt)


def arriving(story: list[tuple[int, str, int]], outputs: Sequence[int] = (1,)) -> list[Request]:
    """With the output lengths in turn."""
    wanted, at_s = [], 0.0
    for (gap_ms, model, prompt_tokens), output_tokens in zip(story, cycle(outputs), strict=False):
        at_s += gap_ms * 1e-3
        wanted.append((at_s, model, prompt_tokens, output_tokens))
    return requests_of(*wanted)


@dataclass
class Jobs:
    """A group: `left` are the requests without a first token, `size` those that ever joined."""

    model: str
    left: list[Request]
    size: int = 1


class Algorithm1:
    def __init__(self, num_instances: int, estimator: Any) -> None:
        self.queues: list[list[Jobs]] = [[] for _ in range(num_instances)]
        self.done: list[list[int]] = [[] for _ in range(num_instances)]
        self._estimator = estimator

    def execute(self) -> None:
        """Line 15: what has been prefilled came from the front."""
        for queue, done in zip(self.queues, self.done, strict=True):
            while queue and queue[0].left[0].generated_tokens > 0:
                done.append(queue[0].left.pop(0).request_id)
                if not queue[0].left:
                    queue.pop(0)

    def arrive(self, request: Request, in_place: list[str | None], chosen: int) -> None:
        """Lines 1 to 13; `chosen` decides between loads that are equal, and no others."""
        for queue in self.queues:
            for group in queue:
                if group.model == request.model and group.size < MAX_GPSIZE:
                    group.left.append(request)
                    group.size += 1
                    return
        loads = [self.load_s(i, model) for i, model in enumerate(in_place)]
        assert loads[chosen] <= min(loads) + TIE_S, (loads, chosen)
        self.queues[chosen].append(Jobs(request.model, [request]))

    def load_s(self, instance: int, in_place: str | None) -> float:
        """Line 9: every request left, and a switch wherever the model is not the one before."""
        estimator, queue = self._estimator, self.queues[instance]
        before = [in_place, *(group.model for group in queue)]
        switches = [b for a, b in pairwise(before) if a != b]
        prompts = [(group.model, r.prompt_tokens) for group in queue for r in group.left]
        executing_s = sum(estimator.prefill_s(*prompt) for prompt in prompts)
        return float(sum(map(estimator.switch_s, switches)) + executing_s)

    def contents(self) -> list[list[tuple[str, int, list[int]]]]:
        return [
            [(g.model, g.size, [r.request_id for r in g.left]) for g in queue]
            for queue in self.queues
        ]


def queued(prefillers: list[Any]) -> list[list[tuple[str, int, list[int]]]]:
    return [
        [(g.model, g.size, [r.request_id for r in g.pending]) for g in p.queue] for p in prefillers
    ]


def prefills(trial: Trial, instance: str) -> list[dict[str, Any]]:
    runs = [e for e in trial.events("run") if e["instance"] == instance]
    return [e for e in runs if e["fields"]["phase"] == "prefill"]


@examples(60)
@given(stories)
def test_requests_join_queue_and_run_as_algorithm_1_says(story: list[tuple[int, str, int]]) -> None:
    oracle: list[Algorithm1] = []

    def watch(system: Any) -> None:
        prefillers, submit = system._prefillers, system.submit
        theirs = Algorithm1(len(prefillers), system._estimator)
        oracle.append(theirs)

        def submitted(request: Request) -> None:
            theirs.execute()
            assert queued(prefillers) == theirs.contents()
            in_place = [p.instance.model for p in prefillers]
            submit(request)
            [chosen] = [i for i, p in enumerate(prefillers) if request in p.held]
            theirs.arrive(request, in_place, chosen)
            assert queued(prefillers) == theirs.contents()

        system.submit = submitted

    trial = Trial("system.num_prefill=3", f"system.max_group_size={MAX_GPSIZE}",
                  num_instances=4, watch=watch)  # fmt: skip
    trial.serve(arriving(story))
    oracle[0].execute()
    names = [prefiller.instance.name for prefiller in trial.system._prefillers]
    ran = [[e["fields"]["requests"] for e in prefills(trial, name)] for name in names]
    assert ran == [[[number] for number in done] for done in oracle[0].done]  # batches of one
    assert trial.statuses() == {"completed"}


def test_of_instances_that_are_equally_idle_the_first_is_chosen() -> None:
    """Line 10 is strict."""
    trial = Trial("system.num_prefill=3", num_instances=4)
    trial.serve(requests_of(*((0.001 * i, model, 300, 1) for i, model in enumerate(MODELS[:3]))))
    names = [prefiller.instance.name for prefiller in trial.system._prefillers]
    ran = [[e["fields"]["model"] for e in prefills(trial, name)] for name in names]
    assert ran == [[model] for model in MODELS[:3]]


@examples(40)
@given(stories, st.sampled_from(MODELS), st.integers(0, 30), st.integers(1, 3))
def test_no_flood_keeps_a_group_waiting_longer_than_the_groups_ahead_of_it(
    story: list[tuple[int, str, int]], flooding: str, flood: int, num_prefill: int
) -> None:
    """Each of which is MAX_GPSIZE prefills at most, whatever arrives later."""
    began: dict[int, tuple[str, int]] = {}  # by who began a group: its instance, groups ahead

    def watch(system: Any) -> None:
        submit = system.submit

        def submitted(request: Request) -> None:
            submit(request)
            for prefiller in system._prefillers:
                for ahead, group in enumerate(prefiller.queue):
                    if group.size == 1 and group.pending[0] is request:
                        began[request.request_id] = prefiller.instance.name, ahead

        system.submit = submitted

    trial = Trial(f"system.num_prefill={num_prefill}", f"system.max_group_size={MAX_GPSIZE}",
                  num_instances=num_prefill + 1, watch=watch)  # fmt: skip
    requests = arriving(story + [(0, flooding, 200), (1, flooding, 200)] * flood)
    trial.serve(requests)
    assert began
    for number, (instance, ahead) in began.items():
        runs = prefills(trial, instance)
        [own] = [e for e in runs if number in e["fields"]["requests"]]
        before = [
            e for e in runs
            if e["end_s"] > requests[number].arrival_s and e["start_s"] < own["start_s"]
        ]  # fmt: skip
        assert len(before) <= ahead * MAX_GPSIZE, (number, ahead, len(before))


@examples(40)
@given(stories, st.lists(st.integers(2, 200), min_size=1, max_size=5), st.integers(1, 2))
@example([(20, "deep-2", 300)] * 20, [10, 200, 10, 200, 200], 1)  # several batches with room
def test_prefilled_requests_join_the_first_batch_with_room_or_the_shortest_work_list(
    story: list[tuple[int, str, int]], outputs: list[int], num_decoders: int
) -> None:
    """Algorithm 2, line 2."""

    def watch(system: Any) -> None:
        decoders, dispatch = system._decoders, system._dispatch_decode

        def dispatched(request: Request) -> str:
            before = [[(b, list(b.requests)) for b in d.work_list] for d in decoders]
            name = dispatch(request)
            [(found, joined)] = [
                (d, b) for d in decoders for b in d.work_list if request in b.requests
            ]
            assert name == found.instance.name
            kv = found.instance.kv(request.model)

            def room(requests: list[Request]) -> bool:
                tokens = [r.prompt_tokens + r.generated_tokens + 64 for r in (*requests, request)]
                return sum(-(-n // kv.block_tokens) for n in tokens) <= kv.num_blocks

            fitting = [
                batch for work_list in before for batch, requests in work_list
                if batch.model == request.model and room(requests)
            ]  # fmt: skip
            if fitting:
                assert joined is fitting[0]
            else:
                sizes = [len(work_list) for work_list in before]
                assert decoders.index(found) == sizes.index(min(sizes))
                assert found.work_list[-1] is joined
                assert joined.requests == [request]
            return str(name)

        system._dispatch_decode = dispatched

    trial = Trial("system.num_prefill=2", num_instances=2 + num_decoders, kv_slabs=5, watch=watch)
    trial.serve(arriving(story, outputs))
    assert trial.statuses() == {"completed"}


@pytest.mark.parametrize(
    ("key", "published"), [("max_group_size", 8), ("max_quota_s", 4.0), ("min_alpha", 0.5)]
)
def test_the_constants_are_those_of_sections_4_2_and_4_3(key: str, published: float) -> None:
    assert system_node(())[key] == published
