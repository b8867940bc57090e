"""Results of other tools as runs of ours: a round trip, and what is refused."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from harness.exporting.__main__ import main as export
from harness.exporting.explain import main as explain
from harness.exporting.importing import main as read
from harness.records.attainment import Attained
from harness.records.run_folder import FinishedRun
from harness.records.score import main as score
from harness.records.token_log import TokenLog
from plots import compare
from tests.unit.metrics.service import Service, absolute, steady, write_run

DUE = ("guidellm", "inference-perf-requests")  # whose files have arrivals
TOOLS = {
    "vllm": "vllm.json", "aiperf-records": "aiperf-records.jsonl",
    **{to: f"{to}.json" for to in DUE},
}  # fmt: skip


def imported(folder: Path, to: str) -> FinishedRun:
    assert export([str(folder), "--to", to]) == 0
    out = folder / to
    assert read([str(folder / TOOLS[to]), "--out", str(out)]) == 0
    return FinishedRun.load(out)


TIMES = st.floats(1e-3, 3.0)
LOGS = st.lists(
    st.tuples(TIMES, TIMES, st.lists(st.tuples(st.integers(1, 4), TIMES), min_size=1, max_size=6),
              st.booleans()),
    min_size=1, max_size=6,
).filter(lambda rows: any(ends for *_, ends in rows))  # fmt: skip


@settings(deadline=None, max_examples=15, phases=[Phase.explicit, Phase.generate])
@given(LOGS, st.sampled_from([*TOOLS]))
def test_a_round_trip_keeps_times_and_tokens(
    rows: list[tuple[float, float, list[tuple[int, float]], bool]], to: str
) -> None:
    """Each row: the gap to the arrival before, the send lag, chunks and the gaps before them, and
    whether the request completes."""
    totals = [sum(size for size, _ in chunks) for _, _, chunks, _ in rows]
    arrivals = np.cumsum([gap for gap, *_ in rows]).tolist()
    service = Service(*zip(arrivals, totals, strict=True))
    for i, (_, lag_s, chunks, ends) in enumerate(rows):
        service.send(i, lag_s)
        at_s = arrivals[i] + lag_s
        for size, gap_s in chunks:
            at_s += gap_s
            service.chunks(i, size, at_s)
        if ends:
            service.recorder.completed(service.requests[i])
        else:
            service.fail(i, "gone")
    with TemporaryDirectory() as made:
        found = imported(write_run(Path(made) / "run", service), to)
    ours, theirs = TokenLog.from_table(service.table()), TokenLog.from_table(found.requests)
    order = np.arange(len(rows)) if to in DUE else np.argsort(ours.sent_s, kind="stable")
    done = ours.completed[order]
    begin_s = ours.arrival_s.min() if to in DUE else ours.sent_s.min()
    atol = 2e-9 if to == "aiperf-records" else 1e-11  # AIPerf has whole nanoseconds
    near = partial(np.testing.assert_allclose, rtol=0, atol=atol)
    assert (theirs.completed == done).all()
    assert (theirs.num_tokens[done] == ours.num_tokens[order][done]).all()
    near(theirs.sent_s, (ours.sent_s - begin_s)[order])
    for name in ("first_s", "last_s"):
        values = (getattr(ours, name) - begin_s)[order]
        near(getattr(theirs, name)[done], values[done])
    if to in DUE:
        near(theirs.arrival_s, ours.arrival_s - begin_s)
    if to == "inference-perf-requests":
        assert theirs.chunk_tokens.tolist() == ours.chunk_tokens.tolist()
        near(theirs.times_s, ours.times_s - begin_s)
    elif to != "guidellm" and set(ours.of(ours.completed).chunk_tokens.tolist()) == {1}:
        gaps = [log.of(log.completed) for log in (ours, theirs)]
        pooled = [np.sort(log.tbt_s()) for log in gaps]
        near(pooled[1], pooled[0])


def test_an_import_says_whose_it_is_and_is_never_valid(tmp_path: Path) -> None:
    run = imported(write_run(tmp_path, steady(70), engine_name="torch"), "vllm")
    assert run.manifest["imported"]["tool"] == "vllm"
    assert len(run.manifest["imported"]["sha256"]) == 64
    assert run.summary["verdict"]["status"] == "NOT JUDGED"
    assert any("scheduled arrivals" in note for note in run.summary["verdict"]["notes"])
    assert run.summary["verdict"]["noted"] == ["not in the file"]
    assert run.summary["tbt_s"]["num_samples"] == 70 * 19
    ours = FinishedRun.load(tmp_path).summary
    sent = ours["ttft_sent_anchored_s"]["mean"]
    assert run.number("ttft_s.mean") == pytest.approx(sent)


def test_what_a_file_lacks_has_no_number(tmp_path: Path) -> None:
    """GuideLLM keeps the first and the last time of an answer."""
    run = imported(write_run(tmp_path, steady(70)), "guidellm")
    ours = FinishedRun.load(tmp_path)
    assert run.summary["tbt_s"]["mean"] is None
    assert "not in the file: how many tokens each chunk had" in run.summary["verdict"]["notes"]
    for name in ("ttft_s.mean", "tpot_s.mean", "e2e_s.p90"):
        assert run.number(name) == pytest.approx(ours.number(name)), name
    assert run.manifest["simulated"] is True


def test_commands_read_an_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = imported(write_run(tmp_path, steady(70)), "aiperf-records")
    assert score([str(run.path), "--slo", "ttft_s=0.5"]) == 0
    assert explain([str(run.path)]) == 0
    assert "imported from aiperf" in capsys.readouterr().out
    assert compare.table([tmp_path, run.path])


def test_inference_perfs_file_has_every_tokens_time(tmp_path: Path) -> None:
    run = imported(write_run(tmp_path, steady(70)), "inference-perf-requests")
    ours, names = FinishedRun.load(tmp_path), ("ttft_s", "tpot_s", "tbt_s", "itl_chunk_s", "e2e_s")
    for name in (f"{name}.{of}" for name in names for of in ("mean", "p90")):
        assert run.number(name) == pytest.approx(ours.number(name)), name
    assert run.manifest["imported"]["lacking"] == [
        "how many tokens were asked for: those that came",
        "chunks: tokens of one time count as one",
    ]
    assert run.manifest["simulated"] is True


def test_a_completed_answer_without_any_token_attains_nothing(tmp_path: Path) -> None:
    """AIPerf may tell of one that neither failed nor had a time."""
    folder = write_run(tmp_path / "run", steady(70))
    assert export([str(folder), "--to", "aiperf-records"]) == 0
    file = folder / TOOLS["aiperf-records"]
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[69]["metrics"] = {"input_sequence_length": {"value": 10, "unit": "tokens"}}
    file.write_text("\n".join(map(json.dumps, lines)))
    assert read([str(file), "--out", str(tmp_path / "out")]) == 0
    run = FinishedRun.load(tmp_path / "out")
    assert (run.summary["num_completed"], run.summary["ttft_s"]["num_samples"]) == (70, 69)
    own = Attained.of(run.log, absolute(100.0, 100.0))
    assert own.time_shares.tolist() == [1.0] * 69 + [0.0]
    assert own.good.tolist() == [True] * 69 + [False]


@pytest.mark.parametrize("to", ["llm-d", "inference-perf", "aiperf"])
def test_a_summary_is_refused_in_a_sentence_that_says_why(
    tmp_path: Path, to: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export([str(write_run(tmp_path / "run", steady(9))), "--to", to]) == 0
    assert read([str(tmp_path / "run" / f"{to}.json"), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "single requests" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


BENCHMARK = {"config": {"backend": {}}, "requests": {"successful": [{"info": 3}]}}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff{", "neither JSON"), (b"{}", "has no request"), (b"[]", "has no request"),
        (b"", "has no request"), (b"3", "no whole result"), (b"[3]", "no whole result"),
        (b'[{"metadata": 3}]', "no whole result"),
        (b"results:\n  request_performance:\n    aggregate: {}\n", "llm-d's benchmark report"),
        (b'[{"start_time": 1, "info": {}}]', "no whole result"),
        (b'{"mean_ttft_ms": 1}', "--save-detailed"),
        (json.dumps({"benchmarks": [BENCHMARK, BENCHMARK]}).encode(), "--benchmark 1, 2"),
        (json.dumps({"benchmarks": [BENCHMARK]}).encode(), "no whole result"),
        (json.dumps({"ttfts": [1.0], "itls": [[-1.0]], "start_times": [0.0], "input_lens": [1],
                     "output_lens": [2], "errors": [""]}).encode(), "one after the other"),
        (json.dumps({"ttfts": [float("nan")], "itls": [[]], "start_times": [0.0], "errors": [""],
                     "input_lens": [1], "output_lens": [1]}).encode(), "no time"),
        (json.dumps({"ttfts": [-1.0], "itls": [[]], "start_times": [0.0], "errors": [""],
                     "input_lens": [1], "output_lens": [1]}).encode(), "1 s before its sending"),
        (json.dumps([{"scheduled_time": 3.0, "start_time": 1.0, "info": {
            "request_metrics": {"text": {"input_tokens": 1}},
            "response_metrics": {"output_token_times": [2.0], "output_tokens": 1}}}]).encode(),
         "1 s before it was due"),
        (json.dumps({"ttfts": [1e999], "itls": [[0.1]], "start_times": [0.0], "errors": [""],
                     "input_lens": [1], "output_lens": [2]}).encode(), "inf is no time"),
        (json.dumps({"ttfts": [1.0, 1.0], "itls": [[]], "start_times": [0.0], "errors": [""],
                     "input_lens": [1], "output_lens": [1]}).encode(), "ttfts 2"),
    ],
)  # fmt: skip
def test_what_is_no_result_is_refused(
    tmp_path: Path, content: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "odd.json", tmp_path / "out"
    file.write_bytes(content)
    assert read([str(file), "--out", str(out)]) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_a_folder_that_is_not_free_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = imported(write_run(tmp_path, steady(10)), "vllm")
    assert read([str(tmp_path / "vllm.json"), "--out", str(run.path)]) == 2
    assert "holds files" in capsys.readouterr().err
