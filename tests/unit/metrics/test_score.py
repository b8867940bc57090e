"""`python -m harness score`: a finished run under other SLOs."""

import csv
from pathlib import Path

import pytest

from harness.comparing.paired import measured
from harness.records.answers import EARLY_ENDS
from harness.records.numbers import number
from harness.records.record import Reported
from harness.records.run_folder import FinishedRun
from harness.records.score import main
from tests.running import run_here
from tests.unit.metrics.service import Service, absolute, steady, write_run


def rows(path: Path, *slos: str) -> list[dict[str, str]]:
    out = path.parent / "scores.csv"
    words = [word for slo in slos for word in ("--slo", slo)]
    assert main([str(path), *words, "--out", str(out)]) == 0
    return list(csv.DictReader(out.open()))


def test_a_score_is_what_the_run_would_have_said(tmp_path: Path) -> None:
    service = steady(200)
    run = write_run(tmp_path / "run", service)
    for ttft_s, tbt_s in ((0.1, 0.02), (0.3, 0.05)):
        (row,) = rows(run, f"ttft_s={ttft_s},tbt_s={tbt_s}")
        told = service.summary(ttft_s, tbt_s)
        for kind in ("request", "token", "time"):
            assert float(row[kind]) == told["slo_attainment"][kind]
        assert float(row["goodput_per_s"]) == told["goodput_per_s"]
        assert 0 < float(row["request"]) < 1


def test_the_table_cuts_no_number_in_a_narrow_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = "llumnix-burstgpt-sim-0123456789ab"
    run = write_run(tmp_path / name, steady(200))
    (row,) = rows(run, "goodput=ttft:900 tbt_p99:100")
    said = capsys.readouterr().out
    assert "…" not in said
    assert "tbt_p99:100:" in said  # no picture of a hundred
    words = said.split()
    for key in ("token", "time", "request"):
        assert f"{float(row[key]):.1%}" in words
    for key in ("fluidity_index", "qoe", "smooth_tokens_per_s", "goodput_per_s"):
        assert number(float(row[key])) in words


def test_a_file_that_cannot_be_written_is_named_as_the_user_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", steady(20))
    out = tmp_path / "none" / "scores.csv"
    assert main([str(run), "slo=chat", "--out", str(out)]) == 2
    assert capsys.readouterr().err == f"error: {out}: No such file or directory\n"


def test_limits_that_are_not_given_are_the_runs_or_the_options(tmp_path: Path) -> None:
    made = Service((0.0, 3), (1.0, 3))
    made.complete(0, 0.3, 0.4, 0.5)
    made.complete(1, 1.6, 1.7, 1.8)
    run = write_run(tmp_path / "run", made)  # judged by 1 s and 0.1 s
    first, second, chat = rows(run, "ttft_s=0.5", "tbt_s=0.05", "chat")
    assert (first["request"], first["tbt_s"]) == ("0.5", "0.1")
    assert (second["request"], second["ttft_s"]) == ("0.0", "1.0")
    assert (chat["slo"], chat["request"]) == ("chat", "1.0")


def test_limits_of_any_kind_score_as_the_run_itself_would(tmp_path: Path) -> None:
    words = ("+system=vllm", "+workload=burstgpt", "workload.num_requests=60", "engine=sim")
    run_here(tmp_path / "plain", *words)
    goodput = "ttft:30 tbt_p99:12 e2e:9000"
    told = run_here(tmp_path / "judged", *words, f"++slo.goodput='{goodput}'")
    (row,) = rows(tmp_path / "plain", f"goodput={goodput}")
    assert row["slo"] == f"limits {goodput}"
    assert float(row["request"]) == told["slo_attainment"]["request"]
    assert float(row["goodput_per_s"]) == told["goodput_per_s"]
    assert 0 < float(row["request"]) < 1
    (own,) = rows(tmp_path / "judged", "ttft_s=0.5")
    assert own["request"] == row["request"]


def test_an_slo_is_typed_as_a_run_takes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = write_run(tmp_path / "run", steady(200)), tmp_path / "scores.csv"
    goodput = "ttft:200 tbt_p99:100"
    for typed, same in (
        (["slo=chat"], "chat"),
        (["slo.ttft_s=0.1", "slo=chat"], "chat,ttft_s=0.1"),
        ([f"++slo.goodput={goodput}"], f"goodput={goodput}"),
    ):
        (expected,) = rows(run, same)
        assert main([*typed, str(run), "--out", str(out)]) == 0
        assert list(csv.DictReader(out.open())) == [expected]
    for words in ([str(run)], ["slo=chat"]):
        assert main(words) == 2
        assert "score takes a run's folder and an SLO" in capsys.readouterr().err


def test_an_answer_that_was_allowed_to_end_early_scores_as_in_the_summary(tmp_path: Path) -> None:
    made = Service((0.0, 5), (1.0, 5))
    made.recorder.event(EARLY_ENDS, "openai-0", 0.0, 0.0)
    for i in (0, 1):
        made.complete(i, i + 0.3, i + 0.35)
        made.recorder.reported(made.requests[i], Reported())
    run = write_run(tmp_path / "run", made)
    told = FinishedRun.load(run).summary
    assert told["answers"]["num_early"] == 2
    assert told["slo_attainment"]["token"] == told["qoe"]["mean"] == 1.0
    (row,) = rows(run, "ttft_s=1.0")
    assert (row["token"], row["qoe"]) == ("1.0", "1.0")
    assert measured(FinishedRun.load(run), absolute())["on_time"].tolist() == [1.0, 1.0]


def test_a_relative_slo_takes_its_baseline(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steady(200))
    (row,) = rows(run, f"kunserve,baseline={run}")
    assert row["slo"] == "kunserve"
    assert float(row["request"]) > 0.9  # 5 x its own P50


@pytest.mark.parametrize(
    ("slo", "said"),
    [
        ("chatty", "--slo=chatty is unknown; choose one of aegaeon"),
        ("ttft=1", "unknown key 'ttft'; valid keys: name, ttft_s, tbt_s"),
        ("ttft_s=-1", "--slo: ttft_s=-1.0 must be a finite number"),
        ("chat,ttft_s", "ttft_s has no value"),
        ("kunserve", "give slo.baseline=PATH"),
        ("goodput=tft:200", "slo.goodput has 'tft:200'"),
        ("goodput=other/ttft:200", "slo.goodput: model=other is unknown; valid: m"),
    ],
)
def test_a_wrong_slo_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], slo: str, said: str
) -> None:
    run = write_run(tmp_path / "run", steady(20))
    assert main([str(run), "--slo", slo]) == 2
    assert said in capsys.readouterr().err
