"""Sessions on real workers: a prefix cache changes no token, and finds what the simulator says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from harness.device.prompts import prompt_ids
from harness.request import Prompt
from harness.schedule import Schedule
from tests.running import model_spec, run_here
from tests.unit.workloads.test_json_traces import branch, call, weka

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("forked_workers")]
LIVE = ("engine=torch", "engine.device=cpu", "engine.num_threads=1")
ROWS = [(30, 20), (70, 9), (95, 40), (12, 5), (40, 33), (90, 12), (18, 17)]  # of 3 sessions


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    path = tmp_path_factory.mktemp("sessions") / "lengths.csv"
    lines = [f"{p},{o},{p + o},1" for p, o in ROWS]
    head = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio"
    path.write_text("\n".join([head, *lines]) + "\n")
    return (
        "+system=vllm", "+workload=sessions", f"workload.path={path}", "workload.rate_per_s=20",
        "workload.think.mean_s=0.05", "engine.num_kv_blocks=60", "figure=null",
    )  # fmt: skip


@pytest.fixture(scope="module")
def cached(
    sessions: tuple[str, ...], forked_workers: None, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder of a live run."""
    folder = tmp_path_factory.mktemp("cached") / "run"
    run_here(folder, *sessions, *LIVE)
    return folder


def test_tokens_are_those_without_a_cache_and_hits_those_of_the_simulator(
    tmp_path: Path, cached: Path, sessions: tuple[str, ...]
) -> None:
    summary = json.loads((cached / "summary.json").read_text())
    off = "system.enable_prefix_caching=false"
    run_here(tmp_path / "plain", *sessions, *LIVE, off)
    simulated = run_here(tmp_path / "sim", *sessions, "engine=sim")
    assert summary["num_completed"] == len(ROWS)
    assert tokens(cached) == tokens(tmp_path / "plain")
    assert hits(cached) == hits(tmp_path / "sim")
    assert sum(hits(cached).values()) > 0
    assert summary["sessions"]["later"]["cached_tokens"] == sum(hits(cached).values())
    assert simulated["sessions"]["first"]["cached_tokens"] == 0
    manifest = json.loads((tmp_path / "sim" / "manifest.json").read_text())
    assert manifest["sessions"] == 3


def test_an_agents_next_turn_waits_for_its_branches(
    tmp_path: Path, sessions: tuple[str, ...]
) -> None:
    path = tmp_path / "agents.jsonl"
    agents = [branch(1, call(1, 34, 9, 1), call(2, 60, 30, 1)), branch(1, call(1, 40, 25, 2))]
    path.write_text(weka(call(0, 48, 20, 1, 3), *agents, call(5, 80, 6, 1, 3), block_size=16))
    words = (*sessions, f"workload.path={path}")
    summary = run_here(tmp_path / "run", *words, "engine=torch", "engine.device=cpu")
    assert summary["num_completed"] == 5
    run_here(tmp_path / "sim", *words, "engine=sim")
    assert hits(tmp_path / "run") == hits(tmp_path / "sim")
    rows = pq.read_table(tmp_path / "run" / "requests.parquet").to_pylist()
    sent_s = {row["prompt_tokens"]: row["sent_s"] for row in rows}
    ended_s = {row["prompt_tokens"]: max(row["token_times_s"]) for row in rows}
    assert min(sent_s[34], sent_s[40]) > ended_s[48]
    assert sent_s[80] > max(ended_s[60], ended_s[40])


def tokens(run: Path) -> dict[int, list[int]]:
    table = pq.read_table(run / "tokens.parquet").to_pydict()
    return dict(zip(table["request_id"], table["token_ids"], strict=True))


def hits(run: Path) -> dict[int, int]:
    table = pq.read_table(run / "requests.parquet").to_pydict()
    return dict(zip(table["request_id"], table["cached_tokens"], strict=True))


def test_each_turn_is_answered_as_its_whole_conversation_sent_at_once(
    tmp_path: Path, cached: Path
) -> None:
    given = tokens(cached)
    schedule = Schedule.load(cached / "schedule.parquet")
    said: dict[int, list[int]] = {}  # of each session, prompts and answers so far
    ids = []
    for request in schedule.requests():
        assert request.turn is not None
        request.answer = given[request.request_id]
        whole = prompt_ids(request, model_spec("tiny-llama").vocab_size, 0)
        before = said.get(request.turn.session, [])
        assert whole[: len(before)] == before
        said[request.turn.session] = whole + request.answer
        ids.append(whole)
    alone = replace(
        schedule, sessions=None, shared=None, prompts=[Prompt.of("", each, each) for each in ids]
    )
    alone.save(tmp_path / "alone.parquet")
    words = ("+system=vllm", "+workload=trace", f"workload.path={tmp_path}/alone.parquet")
    run_here(tmp_path / "alone", *words, *LIVE, "figure=null")
    assert tokens(tmp_path / "alone") == given
