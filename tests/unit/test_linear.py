"""What a simulated request costs does not grow with the queue: lines of Python that are run for
it, and events of the loop, counted and not timed, with four times as many requests in the queue,
or ten and more. Nor do the lines of a request at 0.8 of saturation, or of a monitor's look, grow
beyond what was counted. Loops in C (a sum, a sort, a copy of a list) are one line here however long
they are.

Lines of code that is compiled cannot be counted; the other way of running these tests does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest

from harness import compiled
from tests.benchmarks.bench_loops import AT_ONCE_PER_S, LOOPS, simulate, words

FEW, MANY = 120, 480  # requests; four instances run a few each
MOST_GROWTH = 1.4  # of 4 or more: what fills up first, as groups and live pairs do, is no queue
LESS_GROWTH = {  # they had grown by 1.28: through all groups, which are few, and by asking again
    "aegaeon": 1.15, "blitzscale": 1.2,
}  # fmt: skip
MOST_LINES_A_LOOK = {"distserve": 92, "blitzscale": 220}  # they were 694 and 615
MOST_LINES = {  # (requests at 0.8 of saturation, lines for each: a tenth more than were counted)
    "vllm": (300, 2910), "llumnix": (300, 4020), "kunserve": (300, 4670),
    "serverlessllm": (300, 1660), "aqua": (300, 10080), "distserve": (150, 3340),
    "blitzscale": (150, 4450), "aegaeon": (300, 6840),
}  # fmt: skip
TWO_MODELS = {"serverlessllm": 1920, "aegaeon": 1200}  # requests: else each has a short queue
SEATS = {  # requests: of 120 most have a seat, or with BlitzScale find links that nobody uses
    "aqua": (480, 1920), "vllm_cfs": (480, 1920), "blitzscale": (480, 1920),
}  # fmt: skip
SMALL = ("workload.lengths.max_prompt_tokens=200", "workload.lengths.max_output_tokens=24")
FEW_BLOCKS = {  # so that most requests wait
    "vllm": 60, "llumnix": 60, "kunserve": 60, "distserve": 60, "blitzscale": 60,
}  # fmt: skip


def run(options: Sequence[str]) -> tuple[int, int, float]:
    """Lines, events, and when the last token came."""
    lines = events = 0

    def trace(frame: Any, event: str, argument: object) -> Any:
        nonlocal lines, events
        if event == "line":
            lines += 1
        elif event == "call" and frame.f_code.co_name == "_go_on":
            events += 1
        return trace

    async def watched(play: Any) -> None:
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            await play
        finally:
            sys.settrace(before)

    recorder = simulate(options, watched)
    return lines, events, max(record.last_token_s for record in recorder.records.values())


def queued(system: str, num_requests: int) -> tuple[float, float]:
    """Lines and events for each request where all come at once."""
    more = [f"engine.num_kv_blocks={FEW_BLOCKS[system]}"] if system in FEW_BLOCKS else []
    if system in TWO_MODELS:
        more = ["workload.models.num_models=2"]
    of = "aqua" if system == "vllm_cfs" else system
    options = words(of, num_requests, AT_ONCE_PER_S)[1:]
    lines, events, _ = run([f"+system={system}", *options, *SMALL, *more])
    return lines / num_requests, events / num_requests


@pytest.mark.skipif(compiled.state() == "compiled", reason="counts lines of Python")
@pytest.mark.parametrize("system", [*LOOPS, "vllm_cfs"])
def test_a_request_costs_as_much_with_a_long_queue(system: str) -> None:
    most = LESS_GROWTH.get(system, MOST_GROWTH)
    short, long = SEATS.get(system, (FEW, TWO_MODELS.get(system, MANY)))
    few, many = queued(system, short), queued(system, long)
    assert many[0] <= most * few[0], f"lines for each request: {few[0]:.0f} and {many[0]:.0f}"
    assert many[1] <= most * few[1], f"events for each request: {few[1]:.1f} and {many[1]:.1f}"


@pytest.mark.skipif(compiled.state() == "compiled", reason="counts lines of Python")
@pytest.mark.parametrize("system", MOST_LINES_A_LOOK)
def test_a_look_that_changes_nothing_costs_little(system: str) -> None:
    """The same requests with ten times as many looks of the monitor: these are the difference."""
    options = [*words(system, 8, 1.0), *SMALL]
    often, looks_per_s = run([*options, "system.interval_s=0.01"]), 1 / 0.01 - 1 / 0.1
    seldom = run([*options, "system.interval_s=0.1"])
    assert often[2] == seldom[2], "both serve alike"
    each = (often[0] - seldom[0]) / (often[2] * looks_per_s)
    assert each <= MOST_LINES_A_LOOK[system], f"lines of a look: {each:.0f}"


@pytest.mark.skipif(compiled.state() == "compiled", reason="counts lines of Python")
@pytest.mark.parametrize("system", MOST_LINES)
def test_a_request_costs_no_more_than_it_did(system: str) -> None:
    num_requests, most = MOST_LINES[system]
    lines, _, _ = run(words(system, num_requests, LOOPS[system][1]))
    assert lines <= most * num_requests, f"lines for each request: {lines / num_requests:.0f}"
