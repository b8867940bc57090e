"""Readers of sessions: which requests are turns of one conversation, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.configuration.config import build
from harness.configuration.options import plain
from harness.errors import UsageError
from harness.records.run_table import origin
from harness.schedule import Schedule
from tests.running import composed, run_here


def made(path: Path, *overrides: str, seed: int = 0) -> Schedule:
    words = ("+system=vllm", "+workload=sessions", f"workload.path={path}", "data.download=false")
    config = plain(composed(*words, *overrides))
    data = build(config["data"], "data")
    found: Schedule = build(config["workload"], "workload", data=data, seed=seed).schedule()
    return found


def turns(schedule: Schedule) -> dict[int, list[tuple[int, int]]]:
    """Each session's prompts and answers, in tokens."""
    assert schedule.sessions is not None
    found: dict[int, list[tuple[int, int]]] = {}
    columns = (schedule.sessions.session, schedule.prompt_tokens, schedule.output_tokens)
    for session, prompt, output in zip(*(c.tolist() for c in columns), strict=True):
        found.setdefault(session, []).append((prompt, output))
    return found


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    """Three conversations, of 3, 1 and 2 turns."""
    rows = [(10, 5), (20, 5), (40, 9), (30, 30), (8, 4), (13, 2)]
    path = tmp_path / "lengths.csv"
    lines = [f"{p},{o},{p + o},1" for p, o in rows]
    head = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio"
    path.write_text("\n".join([head, *lines]) + "\n")
    return path


def json_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def mooncake(at_ms: int, tokens: int, output: int, ids: list[int]) -> dict[str, Any]:
    row = {"timestamp": at_ms, "input_length": tokens, "output_length": output}
    return row | {"hash_ids": ids}


def bailian(
    chat: int, parent: int, at_s: float, tokens: int, output: int, ids: list[int]
) -> dict[str, Any]:
    row = {"chat_id": chat, "parent_chat_id": parent, "timestamp": at_s, "type": "text", "turn": 1}
    return row | {"input_length": tokens, "output_length": output, "hash_ids": ids}


def test_rows_that_hold_the_row_before_are_its_next_turns(lengths: Path) -> None:
    schedule = made(lengths, "workload.think.mean_s=3")
    assert turns(schedule) == {
        0: [(10, 5), (20, 5), (40, 9)], 1: [(30, 30)], 2: [(8, 4), (13, 2)],
    }  # fmt: skip
    assert schedule.provenance.synthetic == ["arrivals drawn"]
    assert any("INFERRED" in step for step in schedule.provenance.steps)
    first = [request for request in schedule.requests() if request.turn and not request.turn.number]
    assert first[0].arrival_s == 0
    assert len({request.shared[-1][0] for request in schedule.requests() if request.shared}) == 3


def test_sessions_and_turns_are_cut_and_scaled(lengths: Path) -> None:
    cut = made(lengths, "workload.num_sessions=1", "workload.max_turns=2")
    assert turns(cut) == {0: [(10, 5), (20, 5)]}
    halved = made(lengths, "workload.num_sessions=1", "workload.scale_tokens=2")
    assert turns(halved) == {0: [(20, 10), (40, 10), (80, 18)]}


def test_the_same_seed_makes_the_same_schedule(lengths: Path) -> None:
    assert made(lengths, seed=3).sha256() == made(lengths, seed=3).sha256()
    assert made(lengths, seed=3).sha256() != made(lengths, seed=4).sha256()


def test_bailians_conversations_are_by_their_parents(tmp_path: Path) -> None:
    rows = [
        bailian(1, -1, 0.5, 40, 8, [1, 2, 3]),
        bailian(2, -1, 1.0, 40, 8, [1, 2, 4]),  # begins like 1
        bailian(3, 1, 9.5, 60, 8, [1, 2, 5, 6]),
        bailian(4, 1, 10.0, 60, 8, [1, 2, 5, 7]),  # a branch: a session of its own
        bailian(5, 2, 12.0, 45, 8, [1, 2, 8]),  # its thoughts were dropped: 45 < 40 + 8
        bailian(6, 3, 20.0, 90, 8, [1, 2, 5, 6, 9, 10]),
    ]
    path = json_lines(tmp_path / "b.jsonl", rows)
    schedule = made(path, "workload.rate_per_s=null", "workload.think.mean_s=null")
    assert turns(schedule) == {
        0: [(40, 8), (60, 8), (90, 8)], 1: [(40, 8)], 2: [(60, 8)], 3: [(45, 8)],
    }  # fmt: skip
    assert schedule.arrival_s.tolist() == [0.0, 0.5, 9.0, 9.5, 11.5, 19.5]
    assert schedule.sessions is not None
    assert schedule.sessions.think_s.tolist() == [0.0, 0.0, 9.0, 0.0, 0.0, 10.5]
    assert any("1 turns whose prompt lacks" in step for step in schedule.provenance.steps)
    assert schedule.shared is not None
    common = [segments[:-1] for segments in schedule.shared]
    assert common[0] == common[1] == ((1, 16), (2, 16))
    assert common[2] == common[0], "a later turn begins as its session did"


def test_mooncakes_turns_begin_with_all_full_blocks_of_the_one_before(tmp_path: Path) -> None:
    rows = [
        mooncake(0, 600, 50, [1, 2]),  # block 1 is its own first
        mooncake(1000, 700, 50, [1, 3]),  # continues it
        mooncake(2000, 2000, 50, [1, 4, 5, 6]),  # 1 was continued: begins a session
        mooncake(9000, 2600, 50, [1, 4, 5, 7, 8, 9]),  # continues that one
        mooncake(9500, 300, 50, [10]),  # no full block: nothing can continue it
        mooncake(9900, 900, 50, [10, 11]),
    ]
    path = json_lines(tmp_path / "m.jsonl", rows)
    schedule = made(path, "workload.rate_per_s=null", "workload.think.mean_s=null")
    assert turns(schedule) == {
        0: [(600, 50), (700, 50)], 1: [(2000, 50), (2600, 50)], 2: [(300, 50)], 3: [(900, 50)],
    }  # fmt: skip
    assert schedule.shared is not None
    assert schedule.shared[2][:3] == ((1, 512), (4, 512), (5, 512))


def test_a_schedule_of_sessions_is_replayed_as_it_is(tmp_path: Path, lengths: Path) -> None:
    schedule = made(lengths, seed=5)
    schedule.save(tmp_path / "schedule.parquet")
    assert made(tmp_path / "schedule.parquet").sha256() == schedule.sha256()
    for word in ("num_sessions=2", "think.mean_s=5.0", "rate_per_s=None"):
        with pytest.raises(UsageError, match=f"workload.{word} would change"):
            made(tmp_path / "schedule.parquet", f"workload.{word.replace('None', 'null')}")
    open_loop = ("+system=vllm", "+workload=trace", f"workload.path={tmp_path}/schedule.parquet")
    config = plain(composed(*open_loop))
    data = build(config["data"], "data")
    with pytest.raises(UsageError, match=r"replay it with \+workload=sessions"):
        build(config["workload"], "workload", data=data, seed=0).schedule()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["workload.rate_per_s=null"], "has no timestamps: give workload.rate_per_s"),
        (["workload.think.mean_s=null"], "has no timestamps: give workload.think.mean_s"),
        (["workload.rate_per_s=0"], "rate_per_s=0"),
        (["workload.think.mean_s=-1"], "mean_s=-1"),
        (["workload.num_sessions=0"], "num_sessions=0"),
        (["workload.max_turns=0"], "max_turns=0"),
        (["workload.scale_tokens=0"], "scale_tokens=0"),
        (["+workload.turns=3"], "turns"),
    ],
)
def test_wrong_values_are_refused(lengths: Path, overrides: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        made(lengths, *overrides)


def test_files_without_sessions_are_refused(tmp_path: Path) -> None:
    azure = tmp_path / "azure.csv"
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,10,5\n")
    with pytest.raises(UsageError, match="tells of no sessions; valid: Bailian's"):
        made(azure)
    with pytest.raises(UsageError, match="is not a file"):
        made(tmp_path / "none.jsonl")
    row = bailian(1, -1, 0.5, 40, 8, [1])
    del row["parent_chat_id"]
    path = json_lines(tmp_path / "b.jsonl", [row])
    with pytest.raises(UsageError, match="line 1: parent_chat_id must be a whole number"):
        made(path)
    (tmp_path / "x.parquet").write_bytes(b"no")
    with pytest.raises(UsageError, match="workload=sessions"):
        made(tmp_path / "x.parquet")


def test_think_times_have_the_mean_asked_for(tmp_path: Path) -> None:
    rows = [(10 * i, 5) for i in range(1, 2001)]
    path = tmp_path / "long.csv"
    lines = [f"{p},{o},{p + o},1" for p, o in rows]
    head = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio"
    path.write_text("\n".join([head, *lines]) + "\n")
    schedule = made(path, "workload.think.mean_s=3")
    assert schedule.sessions is not None
    assert np.mean(schedule.sessions.think_s[1:]) == pytest.approx(3, rel=0.1)


RUN = ("+system=vllm", "+workload=sessions", "engine=sim", "figure=null")


def test_a_run_says_that_it_is_a_closed_loop_within_sessions(tmp_path: Path, lengths: Path) -> None:
    summary = run_here(tmp_path / "run", *RUN, f"workload.path={lengths}")
    assert (summary["sessions"]["num_sessions"], summary["asked_rate_per_s"]) == (3, None)
    assert summary["verdict"]["status"] == "VALID"
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert "closed loop within 3 sessions" in origin(manifest)


def test_sessions_end_before_the_models_context_does(tmp_path: Path, lengths: Path) -> None:
    words = (*RUN, f"workload.path={lengths}", "model.max_position=30")
    summary = run_here(tmp_path / "run", *words)
    assert summary["num_requests"] == 4  # 40 + 9 and 30 + 30 are too long
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["dataset"]["steps"][-1].startswith("2 turns left out")
    with pytest.raises(UsageError, match="fit_context=truncate"):
        run_here(tmp_path / "no", *words, "fit_context=refuse")
    with pytest.raises(UsageError, match="no session's first turn fits"):
        run_here(tmp_path / "none", *words, "model.max_position=4")


def test_sessions_take_no_concurrency_and_are_not_joined(tmp_path: Path, lengths: Path) -> None:
    words = (*RUN, f"workload.path={lengths}")
    with pytest.raises(UsageError, match="concurrency=2: a session sends"):
        run_here(tmp_path / "no", *words, "client.concurrency=2")
    assert not (tmp_path / "no").exists()
    joined = ("+system=vllm", "+workload=joined", "+workload@workload.parts.default=sessions")
    with pytest.raises(UsageError, match="a workload of sessions cannot be joined"):
        run_here(tmp_path / "no", *joined, "engine=sim", f"workload.parts.default.path={lengths}")
