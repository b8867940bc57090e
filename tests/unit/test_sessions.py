"""Sessions: when turns are sent, what their prompts are, and what a prefix cache has of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.clock import Loop, VirtualLoop, WallLoop
from harness.device.caching_pool import CachedPrefix, CachingPool
from harness.device.prompts import prompt_ids
from harness.engine.block_tables import BlockTables
from harness.errors import RunError
from harness.records.evidence import Evidence
from harness.records.record import Recorder, Reported
from harness.records.sessions import foreign_cached_tokens
from harness.records.tables import requests_table
from harness.records.verdict import rules
from harness.request import Request
from harness.running.session_loop import SessionLoop
from harness.schedule import Schedule
from harness.sessions import Sessions
from tests.accounts import audit
from tests.unit.metrics.service import PROVENANCE
from tests.unit.test_closed_loop import Timed

BLOCK = 4


def schedule(
    session: list[int],
    prompt: list[int],
    output: int = 1,
    think_s: float = 2.0,
    waits_for: list[tuple[int, ...]] | None = None,
) -> Schedule:
    """Requests a second apart, each of the session that `session` says."""
    rows = len(session)
    later = [number in session[:row] for row, number in enumerate(session)]
    return Schedule(
        arrival_s=np.arange(rows, dtype=np.float64), model=["m"] * rows,
        prompt_tokens=np.array(prompt), output_tokens=np.full(rows, output),
        provenance=PROVENANCE,
        shared=[((s, p + output),) for s, p in zip(session, prompt, strict=True)],
        sessions=Sessions(np.array(session), np.where(later, think_s, 0.0), waits_for),
    )  # fmt: skip


TWO = schedule([7, 3, 7, 7, 3], [5, 6, 9, 12, 10])
# An agent, two branches, of which one has two turns, and the agent's next turn
AGENT = schedule([0, 1, 2, 1, 0], [5, 6, 7, 9, 12], waits_for=[(), (0,), (0,), (), (3, 2)])


class Answering(Timed):
    """Counts the token too, as instances do."""

    async def _answer(self, request: Request, service_s: float) -> None:
        request.generated_tokens = 1
        await super()._answer(request, service_s)


def played(loop: Loop, requests: list[Request], service_s: list[float | None]) -> Recorder:
    recorder = Recorder(requests)
    system = Answering(loop, recorder, service_s)
    client = SessionLoop(50.0, loop=loop, recorder=recorder, system=system)
    loop.run(client.play(requests))
    return recorder


def test_a_turn_is_sent_when_the_answer_before_has_ended_and_its_user_has_thought() -> None:
    records = played(VirtualLoop(), TWO.requests(), [10.0, 0.5, 1.0, 1.0, 20.0]).records
    sent_s = [records[i].sent_s for i in range(5)]
    assert sent_s == [0.0, 1.0, 12.0, 15.0, 3.5]
    assert [records[i].request.arrival_s for i in range(5)] == sent_s
    turns = [(t.session, t.number) for i in range(5) if (t := records[i].request.turn)]
    assert turns == [(7, 0), (3, 0), (7, 1), (7, 2), (3, 1)]


def test_the_verdict_asks_for_no_rate_and_tells_first_turns_from_later_ones() -> None:
    recorder = played(VirtualLoop(), TWO.requests(), [10.0, 0.5, 1.0, 1.0, 20.0])
    run = Evidence.of(requests_table(recorder), recorder.events, simulated=True)
    assert {rule.name: rule.applies for rule in rules(run)}["asked rate"] is False
    assert [sentence for rule in rules(run) for sentence in rule.broken] == []
    assert run.sessions is not None
    assert run.sessions["num_sessions"] == 2
    assert run.sessions["first"]["ttft_s"]["mean"] == pytest.approx(10.5 / 2)
    assert run.sessions["later"]["ttft_s"]["mean"] == pytest.approx(22 / 3)
    assert run.sessions["later"]["history_tokens"] == 6 + 10 + 7


def test_turns_behind_one_that_never_ends_fail_unsent_with_a_reason() -> None:
    records = played(VirtualLoop(), TWO.requests(), [None, 0.5, 1.0, 1.0, 1.0]).records
    assert [records[i].status for i in range(5)] == [
        "timeout", "completed", "failed", "failed", "completed",
    ]  # fmt: skip
    assert "never sent" in records[3].error
    assert records[3].sent_s is None


def test_branches_run_beside_each_other_and_the_next_turn_waits_for_the_last() -> None:
    records = played(VirtualLoop(), AGENT.requests(), [10.0, 1.0, 30.0, 4.0, 1.0]).records
    assert [records[i].sent_s for i in range(5)] == [0.0, 10.0, 10.0, 13.0, 42.0]
    assert [records[i].request.arrival_s for i in range(5)] == [0.0, 10.0, 10.0, 13.0, 42.0]
    records = played(VirtualLoop(), AGENT.requests(), [10.0, 1.0, 3.0, 40.0, 1.0]).records
    assert records[4].sent_s == 55.0
    assert records[4].request.prompt_tokens == 12


@pytest.mark.parametrize("fails", [1, 2, 3])
def test_a_branch_that_fails_ends_what_waits_for_it_and_nothing_else(fails: int) -> None:
    service_s: list[float | None] = [1.0] * 5
    service_s[fails] = None
    records = played(VirtualLoop(), AGENT.requests(), service_s).records
    unsent = [i for i in range(5) if records[i].sent_s is None]
    assert unsent == ([3, 4] if fails == 1 else [4])
    failed = {i for i in range(5) if records[i].status == "failed"}
    assert failed == set(unsent)
    assert "never sent" in records[4].error


def test_a_session_of_any_length_may_fail() -> None:
    long = schedule([1] * 1500, [*range(5, 3005, 2)]).requests()
    records = played(VirtualLoop(), long, [None] * 1500).records
    assert [records[i].status for i in (0, 1, 1499)] == ["timeout", "failed", "failed"]


def test_on_a_wall_clock_every_turn_ends() -> None:
    requests = schedule([0, 0, 0], [5, 9, 12], think_s=0.002).requests()
    recorder = played(WallLoop(), requests, [0.002] * 3)
    assert [record.status for record in recorder.records.values()] == ["completed"] * 3


def test_a_schedule_of_sessions_is_read_back_and_others_hash_as_before(tmp_path: Path) -> None:
    TWO.save(tmp_path / "s.parquet")
    back = Schedule.load(tmp_path / "s.parquet")
    assert back.sha256() == TWO.sha256()
    turns = [request.turn for request in back.requests()]
    assert [(t.number, t.think_s, t.new_tokens) for t in turns if t is not None] == [
        (0, 0.0, 5), (0, 0.0, 6), (1, 2.0, 3), (2, 2.0, 2), (1, 2.0, 3),
    ]  # fmt: skip
    other = schedule([7, 3, 7, 7, 3], [5, 6, 9, 12, 10], think_s=1.0)
    assert other.sha256() != TWO.sha256()
    AGENT.save(tmp_path / "a.parquet")
    back = Schedule.load(tmp_path / "a.parquet")
    assert back.sessions is not None
    assert back.sessions.waits_for == [(), (0,), (0,), (), (3, 2)]
    assert back.sha256() == AGENT.sha256() != replace(AGENT, sessions=TWO.sessions).sha256()


@pytest.mark.parametrize(
    ("session", "prompt", "think_s", "said"),
    [
        ([0, 0], [5, 6], 1.0, "row 1: its prompt of 6 tokens must be longer than prompt and"),
        ([0, 0], [5, 9], -1.0, "row 1: think_s must be at least 0, got -1.0"),
        ([0, 0], [5, 9], float("nan"), "row 1: think_s must be at least 0, got nan"),
    ],
)
def test_what_is_no_session_is_refused(
    session: list[int], prompt: list[int], think_s: float, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        schedule(session, prompt, think_s=think_s)


@pytest.mark.parametrize("rows", [[(), (1,)], [(0,), ()], [(), (-1,)]])
def test_a_row_waits_for_rows_before_it_alone(rows: list[tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="waits_for must be rows before it, got"):
        schedule([0, 1], [5, 6], waits_for=rows)
    with pytest.raises(ValueError, match="one value for each row"):
        schedule([0, 1], [5, 6], waits_for=[()])


def test_a_prompt_is_what_was_said_before_with_the_real_answers() -> None:
    first, _, second, third, _ = TWO.requests()
    first.answer, second.answer = [1001], [1002]
    ids = {request.request_id: prompt_ids(request, 1000, 3) for request in (first, second, third)}
    assert [len(each) for each in ids.values()] == [5, 9, 12]
    assert ids[2][:6] == [*ids[0], 1001]
    assert ids[3][:10] == [*ids[2], 1002]
    second.answer = "a text"
    with pytest.raises(RunError, match="answered without token ids"):
        prompt_ids(third, 1000, 3)


sizes = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5)


@settings(deadline=None)
@given(sizes, st.integers(0, 3))
def test_a_turn_finds_all_full_blocks_of_what_was_computed_before_in_its_session(
    said: list[tuple[int, int]], common: int
) -> None:
    """Prompts, answers, and an unrelated request between two turns, on live block tables."""
    pool, before = CachingPool(60, BLOCK), 0
    tables = BlockTables(pool)
    prefix_blocks: list[int] = []
    previous: Request | None = None
    for number, (new, output) in enumerate(said):
        prompt = before + new
        requests = schedule([0], [prompt + common * BLOCK], output).requests()
        one = requests[0]
        one.request_id = 10 * number
        assert one.turn is not None
        one.shared = ((9, common * BLOCK), (1, prompt + output)) if common else one.shared
        found = pool.cached_prefix(one)
        assert isinstance(found, CachedPrefix)
        computed = 0 if previous is None else previous.computed_tokens
        most = min(computed, one.prompt_tokens - 1) // BLOCK
        assert found.num_blocks == most
        assert pool.admit(one, one.prompt_tokens, found)
        one.computed_tokens = one.prompt_tokens
        tables.reconcile([one])
        assert tables.ids[one.request_id][:most] == prefix_blocks[:most]
        one.generated_tokens = 1
        for _ in range(output - 1):
            assert pool.grow(one, one.computed_tokens + 1)
            one.computed_tokens += 1
            one.generated_tokens += 1
        tables.reconcile([one])
        prefix_blocks = tables.ids[one.request_id]
        pool.release(one)
        audit(pool)
        audit(tables)
        before, previous = prompt + output, one


def answers(cached: list[int], template_tokens: int = 0) -> pa.Table:
    recorder = played(VirtualLoop(), TWO.requests(), [1.0] * 5)
    for record, tokens in zip(recorder.records.values(), cached, strict=True):
        counted = record.request.prompt_tokens + template_tokens
        recorder.reported(record.request, Reported(counted, tokens))
    return requests_table(recorder)


def test_hits_within_a_session_are_meant_and_those_of_earlier_runs_are_not() -> None:
    assert foreign_cached_tokens(answers([0, 0, 6, 10, 7])) == 0
    assert foreign_cached_tokens(answers([4, 0, 8, 10, 7])) == 4 + 2
    assert foreign_cached_tokens(answers([4, 4, 8, 10, 7], template_tokens=4)) == 0
    for cached, broken in (([0, 0, 6, 10, 7], []), ([4, 0, 8, 10, 7], ["14.3%"])):
        run = Evidence.of(answers(cached), [], simulated=False)
        told = [
            s for rule in rules(run) if rule.name == "the prompts asked for" for s in rule.broken
        ]
        assert [sentence.split()[0] for sentence in told] == broken
