"""WEKA's agents with their branches and ServeGen's conversations: how they are read and played."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.clock import VirtualLoop
from harness.errors import UsageError
from harness.schedule import Schedule
from tests.running import run_here
from tests.unit.test_sessions import played
from tests.unit.workloads.test_formats import read
from tests.unit.workloads.test_sessions_workload import RUN, made, turns
from workloads.conversations import sessions

Entry = dict[str, Any]
THINK_S = ("workload.rate_per_s=null", "workload.think.mean_s=null")


def weka(*requests: Entry, **more: Any) -> str:
    """A line of WEKA's form, made by hand."""
    every = [{"type": "s", "model": "m", "stop": ""} | request for request in requests]
    return json.dumps({"id": "one", "models": ["m"], "block_size": 64, "requests": every} | more)


def call(t: float, tokens: int, out: int, *ids: int) -> Entry:
    return {"t": t, "type": "n", "in": tokens, "out": out, "hash_ids": list(ids)}


def branch(t: float, *requests: Entry) -> Entry:
    return {"t": t, "type": "subagent", "agent_id": "a", "requests": list(requests)}


FIRST = call(0.0, 128, 10, 1, 2)
SECOND = call(4.5, 160, 7, 1, 2, 3) | {"think_time": 2.0}
LAST = call(20.0, 200, 7, 1, 2, 3)
# One beside the other: of two turns and of one
BESIDE = (
    branch(1.0, call(1.5, 70, 5, 1, 9), call(4.0, 80, 6, 1, 9)),
    branch(2.0, call(2.0, 64, 3, 8)),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agents.jsonl"


def test_wekas_conversations_share_blocks_within_themselves(path: Path) -> None:
    path.write_text(f"{weka(FIRST, SECOND)}\n\n{weka(FIRST)}\n")
    trace = read(path)
    assert trace.arrivals().tolist() == [0.0, 0.0, 4.5]
    assert trace.prompt_tokens.tolist() == [128, 128, 160]
    assert trace.output_tokens.tolist() == [10, 10, 7]
    assert sessions(trace)[1].session.tolist() == [0, 1, 0]
    assert trace.shared is not None
    one, other, later = ([stream for stream, _ in row] for row in trace.shared)
    assert later[:2] == one
    assert set(other).isdisjoint(later)
    assert {tokens for row in trace.shared for _, tokens in row} == {64}
    path.write_text("\n".join(weka(FIRST, hash_id_scope="global") for _ in range(2)))
    both = read(path).shared
    assert both is not None
    assert both[0] == both[1]
    lines = (weka(FIRST, hash_id_scope="global"), weka(SECOND, hash_id_scope="global"))
    path.write_text("\n".join(lines))
    assert sessions(read(path))[1].session.tolist() == [0, 1], "a line is a conversation"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (weka(FIRST, branch(1) | {"t": None}), "line 1: t must be a number of at least 0, got N"),
        (weka(FIRST, branch(1) | {"requests": 5}), "line 1: requests must be a list of objects"),
        (weka(FIRST, branch(1, FIRST | {"out": "x"})), "line 1: out must be a whole number"),
        (weka(FIRST, block_size=0), "line 1: block_size must be a whole number of at least 1"),
        (weka(FIRST | {"t": -1}), "line 1: t must be a number of at least 0, got -1"),
        (weka(FIRST | {"in": 1.5}), "line 1: in must be a whole number"),
        (weka(FIRST | {"hash_ids": 3}), "line 1: hash_ids must be a list"),
        (weka(requests=7), "line 1: requests must be a list of objects"),
        (weka(branch(0.0)), "has no requests"),
        (f"{weka(FIRST)}\n{weka(FIRST, hash_id_scope='global')}", "scope=global is not that of th"),
        (f"{weka(FIRST)}\n{{}}", "line 2: requests must be a list of objects"),
        ("[[{]]", "not JSON"),
        ("[]", "has no requests"),
        ("[[], 4]", "conversation 1 must be a list of objects"),
        ('[[{"turn": 0}]]', "conversation 0, turn 0: timestamp must be a number"),
    ],
)
def test_what_is_broken_is_named(path: Path, line: str, message: str) -> None:
    path.write_text(line)
    with pytest.raises(UsageError, match=message):
        read(path)


def servegen(turn: int, at_s: float, tokens: int, output: int) -> Entry:
    return {
        "turn": turn, "timestamp": at_s, "input_token_count": tokens, "output_token_count": output,
        "input_tokens": ["a7"], "output_tokens": ["b1"] * output,
    }  # fmt: skip


def test_servegens_conversations_are_sessions_by_their_lists(tmp_path: Path) -> None:
    path = tmp_path / "conversations_hashed.json"
    found = [
        [
            servegen(i, 1.7e9 + at, n, out)
            for i, at, n, out in [(0, 5, 10, 4), (1, 9, 20, 4), (2, 30, 22, 9)]
        ],
        [servegen(0, 1.7e9, 7, 2)],
    ]
    path.write_text(json.dumps(found))
    assert read(path).arrivals().tolist() == [0.0, 5.0, 9.0, 30.0]
    schedule = made(path, *THINK_S)
    assert turns(schedule) == {0: [(7, 2)], 1: [(10, 4), (20, 4)], 2: [(22, 9)]}
    assert schedule.arrival_s.tolist() == [0.0, 5.0, 9.0, 30.0]
    assert any("1 turns whose prompt lacks" in step for step in schedule.provenance.steps)
    found[0][1] |= servegen(1, 1.7e9 + 9, 20, 0)
    found[0][2]["input_token_count"] = 40
    path.write_text(json.dumps(found))
    schedule = made(path, *THINK_S)
    assert turns(schedule) == {0: [(7, 2)], 1: [(10, 4)], 2: [(40, 9)]}
    assert any("1 turns whose prompt lacks" in step for step in schedule.provenance.steps)
    found[0][2]["turn"] = 1
    path.write_text(json.dumps(found))
    with pytest.raises(UsageError, match="conversation 0, turn 2: turn must be more than 1, got 1"):
        read(path)


def test_servegens_batch_jobs_are_lengths_and_have_no_times(tmp_path: Path) -> None:
    """As data/offline/README.md of its repository has them; the numbers are made up."""
    path = tmp_path / "trace_d.jsonl"
    rows = [
        {"request_id": i, "type": "text", "input_length": n, "output_length": out, "duration": 700}
        for i, (n, out) in enumerate([(61, 2370), (54, 12)])
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace = read(path)
    assert trace.arrival_s is None
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([61, 54], [2370, 12])
    hashed = {"request_id": 0, "type": "text", "input_length": 61, "hash_ids": [0], "img_ids": []}
    path.write_text(json.dumps(hashed) + "\n")  # trace_a to trace_c tell no outputs
    with pytest.raises(
        UsageError, match=r"line 1: output_length must be a whole number .* got None"
    ):
        read(path)


def test_what_servegens_generator_saves_is_read(tmp_path: Path) -> None:
    """The header is that of its own test of save_requests_to_csv."""
    path = tmp_path / "workload.csv"
    path.write_text("request_id,timestamp,input_tokens,output_tokens\n0,0.5,10,20\n1,1.25,15,25\n")
    trace = read(path)
    assert trace.arrivals().tolist() == [0.5, 1.25]
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([10, 15], [20, 25])


def waits(schedule: Schedule) -> dict[int, list[int]]:
    """Prompt tokens of each request -> those of all that it waits for."""
    assert schedule.sessions is not None
    tokens = schedule.prompt_tokens.tolist()
    rows = enumerate(schedule.sessions.earlier())
    return {tokens[row]: sorted(tokens[each] for each in earlier) for row, earlier in rows}


@pytest.mark.parametrize("inner_from_s", [0.0, 1.0])
def test_branches_run_beside_each_other_and_their_parent_waits(
    path: Path, inner_from_s: float
) -> None:
    """Times inside a branch count from the conversation's begin, or from its own."""
    first, second = (json.loads(json.dumps(each)) for each in BESIDE)
    for agent in (first, second):
        for request in agent["requests"]:
            request["t"] -= inner_from_s * agent["t"]
    path.write_text(weka(FIRST, first, second, LAST))
    assert sorted(read(path).arrivals()) == [0.0, 1.5, 2.0, 4.0, 20.0]
    schedule = made(path, *THINK_S)
    assert waits(schedule) == {128: [], 70: [128], 80: [70], 64: [128], 200: [64, 80, 128]}
    assert schedule.sessions is not None
    assert schedule.sessions.think_s.tolist() == [0.0, 1.5, 2.0, 2.5, 16.0]
    assert turns(schedule) == {0: [(128, 10), (200, 7)], 1: [(70, 5), (80, 6)], 2: [(64, 3)]}
    assert schedule.shared is not None
    assert schedule.shared[1][0] == schedule.shared[0][0], "what the hash ids say"


def test_times_count_from_their_agent_where_an_agent_is_before_the_one_around_it(
    path: Path,
) -> None:
    inner = branch(1.0, call(1.5, 64, 3, 7))
    path.write_text(weka(FIRST, branch(10.0, call(12.0, 70, 5, 9), inner), LAST))
    assert sorted(read(path).arrivals()) == [0.0, 12.5, 20.0, 22.0]


def test_an_agent_in_a_branch_and_turns_that_drop_what_was_said(path: Path) -> None:
    inner = branch(2.0, call(2.0, 64, 3, 7))
    last = branch(4.0, call(4.0, 64, 3, 7))
    agent = branch(1.0, call(1.0, 70, 5, 9), inner, call(3.0, 72, 5, 6), last)
    path.write_text(weka(FIRST, branch(1.0), agent, LAST))
    schedule = made(path, *THINK_S)
    assert schedule.sessions is not None
    rows = [sorted(row) for row in schedule.sessions.earlier()]
    assert rows == [[], [0], [1], [1, 2], [3], [0, 4]]


def test_turns_that_are_left_out_take_what_they_begin_along(path: Path) -> None:
    more = (*BESIDE, LAST, branch(30.0, call(30.0, 66, 1, 5)), call(40.0, 300, 7, 1, 2, 3, 4))
    path.write_text(f"{weka(FIRST, *more)}\n{weka(FIRST)}")
    whole = made(path)
    assert whole.sessions is not None
    one = made(path, "workload.num_sessions=1")
    assert len(one) == len(whole) - 1
    assert waits(made(path, "workload.num_sessions=1", "workload.max_turns=2")) == {
        128: [], 70: [128], 80: [70], 64: [128], 200: [64, 80, 128], 66: [200],
    }  # fmt: skip
    single = made(path, "workload.num_sessions=1", "workload.max_turns=1")
    assert waits(single) == {128: [], 70: [128], 64: [128]}
    out = whole.prompt_tokens == 80
    keep, left = whole.sessions.without(out)
    row = whole.prompt_tokens[keep].tolist().index(200)
    assert sorted(whole.prompt_tokens[keep][list(left.earlier()[row])]) == [64, 70, 128]


@st.composite
def agents(draw: st.DrawFn, depth: int = 3) -> list[Any]:
    """Lists of requests: an int, how far its context goes back; a list is a branch."""
    inner = agents(depth - 1) if depth else st.just([0])
    entries = draw(st.lists(st.one_of(st.integers(0, 2), inner), max_size=4))
    return [0, *entries, [0]] if depth == 3 else entries


@settings(deadline=None, max_examples=40)
@given(agents(), st.randoms(use_true_random=False))
def test_each_request_is_sent_once_and_after_all_that_it_waits_for(
    tmp_path_factory: pytest.TempPathFactory, tree: list[Any], chance: Any
) -> None:
    places: list[tuple[int, ...]] = []  # of the request with so many output tokens, from 1

    def listed(entries: list[Any], place: tuple[int, ...]) -> list[Entry]:
        found, ids = list[Entry](), list[int]()
        for i, entry in enumerate(entries):
            at_s = float(chance.randrange(100))
            if isinstance(entry, list):
                found.append(branch(at_s, *listed(entry, (*place, i))))
                continue
            ids = [*ids[: len(ids) - entry], 1000 * len(places) + 1]
            places.append((*place, i))
            found.append(call(at_s, 64 * len(ids), len(places), *ids))
        return found

    path = tmp_path_factory.getbasetemp() / "drawn.jsonl"
    path.write_text(weka(*listed(tree, ())))
    requests = made(path, *THINK_S).requests()
    odds = chance.choice([0.0, 0.2])
    service_s = [None if chance.random() < odds else chance.random() for _ in requests]
    records = played(VirtualLoop(), requests, service_s).records
    by_place = {places[each.request.output_tokens - 1]: each for each in records.values()}
    assert len(by_place) == len(places)
    for place, record in by_place.items():
        awaited = [other for at, other in by_place.items() if at < place and ends_first(at, place)]
        if record.sent_s is not None:
            assert {other.status for other in awaited} <= {"completed"}
            assert record.sent_s >= max((other.last_token_s for other in awaited), default=0.0)
        else:
            assert {other.status for other in awaited} - {"completed"}


def ends_first(at: tuple[int, ...], place: tuple[int, ...]) -> bool:
    """Whether the request `at` is in the list of `place`, below it, or in a list around it."""
    return at[: len(place) - 1] == place[:-1] or at[:-1] == place[: len(at) - 1]


def test_a_simulated_run_has_both_at_once_and_leaves_out_what_is_too_long(
    tmp_path: Path, path: Path
) -> None:
    path.write_text(weka(FIRST, *BESIDE, LAST))
    words = (*RUN, f"workload.path={path}", "workload.think.mean_s=0")
    summary = run_here(tmp_path / "run", *words)
    assert summary["verdict"]["status"] == "VALID"
    assert (summary["num_completed"], summary["sessions"]["num_sessions"]) == (5, 3)
    again = made(tmp_path / "run" / "schedule.parquet")
    assert waits(again)[200] == [64, 80, 128]
    short = run_here(tmp_path / "short", *words, "model.max_position=150")
    assert short["num_completed"] == 4
