"""Live runs of `reproduce` that are no figure: the smoke tier's, and those on vLLM's engine."""

import json
from pathlib import Path

import pytest

from harness.experiments.compose import Composed
from harness.experiments.points import Point
from harness.reproduce import live_runs, report
from harness.reproduce.__main__ import main
from harness.reproduce.asked import SMOKE_RUN
from harness.reproduce.holding import FAILED, SAME, UNTOLD
from tests.unit.plots.test_reproduce import into


def summary(folder: Path, status: str, num_completed: int = 80) -> Point:
    verdict = {"status": status, "reasons": ["the cores were busy"]}
    found = {"num_completed": num_completed, "num_requests": 80, "verdict": verdict}
    found["ttft_s"] = {"mean": 0.5 if num_completed else None}
    (folder / "summary.json").write_text(json.dumps(found))
    return Point("demo", {}, 0, folder, "")


@pytest.mark.parametrize(
    ("status", "num_completed", "outcome", "words"),
    [
        ("VALID", 80, SAME, "80 of 80 requests completed, VALID"),
        ("INVALID", 80, UNTOLD, "80 of 80 requests completed, INVALID: the cores were busy"),
        ("VALID", 79, FAILED, "79 of 80 requests completed, VALID"),
        ("INVALID", 18, FAILED, "18 of 80 requests completed, INVALID: the cores were busy"),
    ],
)
def test_what_the_live_run_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    status: str, num_completed: int, outcome: str, words: str,
) -> None:  # fmt: skip
    point = summary(tmp_path, status, num_completed)
    monkeypatch.setattr(live_runs, "run_point", lambda *_, **__: point)
    row = live_runs.live_run(SMOKE_RUN)
    assert row.outcome == outcome
    assert words in row.told


@pytest.mark.parametrize("profile", ["", "h100x1"])
def test_what_has_a_version_on_vllm_is_made_there_beside_the_committed_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    profile: str,
) -> None:  # fmt: skip
    out = into(tmp_path, monkeypatch).with_name(profile or "full")
    made: list[str] = []

    def run_point(name: str, of: Composed, overrides: list[str], **_: object) -> Point:
        assert (of.choices["engine"], name) == ("vllm", "aqua_vllm_burst")
        assert of.choices["hardware"] == (profile or "local")
        made.append(overrides[0].partition("=")[2])
        return summary(tmp_path, "INVALID" if made[-1] == "aqua" else "VALID")

    monkeypatch.setattr(live_runs, "run_point", run_point)
    assert main(["aqua", "--world", "vllm", *(["--hardware", profile] if profile else [])]) == 0
    assert made == ["fcfs", "cfs_dram", "cfs_dram_gathered", "aqua"]
    assert "0 figures of 4 runs (4 live): about 7 minutes" in capsys.readouterr().err
    rows = {row.name: row for row in report.read(out)}
    assert rows.keys() == {f"aqua_vllm_burst {name}" for name in made}
    assert rows["aqua_vllm_burst fcfs"].outcome == UNTOLD, "its number is no other's"
    assert rows["aqua_vllm_burst fcfs"].told.endswith("VALID; mean TTFT 0.5 s, committed 19.7 s")
    assert rows["aqua_vllm_burst aqua"].outcome == UNTOLD
