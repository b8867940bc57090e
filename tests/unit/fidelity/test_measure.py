"""A whole report, with made-up runs in the place of real ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from harness.errors import RunError
from harness.fidelity import __main__ as fidelity
from harness.fidelity import parity_runs
from harness.fidelity.arguments import parity_parser
from harness.fidelity.parity import LATENCIES, RATES
from harness.fidelity.parity_runs import LoadPoint
from harness.fidelity.report import markdown

WORDS = ["--workloads", "azure_code", "burstgpt", "--loads", "0.3", "0.9", "--passes", "2"]
MADE_UP = ["arrivals drawn", "lengths drawn"]
KNEES = {"azure_code": 10.0, "burstgpt": 20.0}


def run(factor: float, status: str = "VALID", *, synthetic: Sequence[str] = ()) -> SimpleNamespace:
    summary: dict[str, Any] = {
        name: {"p50": factor, "p90": factor, "p99": None} for name in LATENCIES
    }
    summary |= dict.fromkeys(RATES, 10.0)
    summary |= {"slo_attainment": {"token": 0.9}}
    reasons = [] if status == "VALID" else ["the client was late"]
    summary["verdict"] = {"status": status, "reasons": reasons}
    hardware = {"name": "local", "device": "cpu"}
    manifest = {
        "choices": {"model": "tiny-llama"}, "hardware": hardware,
        "dataset": {"synthetic": list(synthetic)},
        "engine": {"step_times": {"tiny-llama": "measured"}},
    }  # fmt: skip
    return SimpleNamespace(summary=summary, manifest=manifest, config={"hardware": {"name": ""}})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, list[Any]]:
    """What was asked of the parts that would run something."""
    monkeypatch.chdir(tmp_path)
    seen: dict[str, list[Any]] = {"profiles": [], "knees": [], "points": [], "time_scale": []}
    seen["speeds"] = [1.0]

    def profiled(words: list[str]) -> int:
        seen["profiles"].append(words)
        return 0

    def knee(point: LoadPoint, *_: object) -> float:
        seen["knees"].append(point.workload)
        return KNEES[point.workload]

    def serve(point: LoadPoint, folder: Path, *_: object) -> SimpleNamespace:
        folder.parent.mkdir(parents=True, exist_ok=True)
        seen["points"].append((point, folder.parent))
        late = point.rate_per_s == 18.0 and folder.parent.name == "pass-1"
        status = "INVALID" if late else "VALID"
        return run(1.0, status, synthetic=MADE_UP if point.workload == "burstgpt" else ())

    def simulate(
        real: SimpleNamespace, words: Sequence[str], setting: object, folder: Path,
        time_scale: float = 1.0,
    ) -> SimpleNamespace:  # fmt: skip
        seen["time_scale"].append(time_scale)
        fast = "workload.scale.to_rate_per_s=18" in words
        return run(2.0 if fast and folder.parent.name == "pass-1" else 1.1 * time_scale)

    monkeypatch.setattr(parity_runs, "calibrate", profiled)
    monkeypatch.setattr(fidelity, "capacity_per_s", knee)
    monkeypatch.setattr(fidelity, "serve", serve)
    monkeypatch.setattr(fidelity, "simulate", simulate)
    monkeypatch.setattr(fidelity, "time_scale", lambda *_: seen["speeds"][0])
    return seen


def test_each_pass_is_calibrated_and_a_knee_is_measured_once(asked: dict[str, list[Any]]) -> None:
    fidelity.measure(parity_parser().parse_args(WORDS), Console(quiet=True))
    assert asked["profiles"] == [["measure", "--engine", "torch", "--model", "tiny-llama"]] * 2
    assert asked["knees"] == ["azure_code", "burstgpt"]
    rates = [point.rate_per_s for point, _ in asked["points"]]
    assert rates == pytest.approx([3.0, 9.0, 6.0, 18.0, 6.0, 18.0, 3.0, 9.0])  # in turns
    folders = [folder for _, folder in asked["points"]]
    assert len(set(folders)) == 8
    assert {folder.name for folder in folders} == {"pass-1", "pass-2"}


def test_an_invalid_run_is_told_and_left_out(asked: dict[str, list[Any]]) -> None:
    found = fidelity.measure(parity_parser().parse_args(WORDS), Console(quiet=True))
    assert found["invalid"] == ["burstgpt at 0.9 of 20.0 requests/s, pass 1: the client was late"]
    errors = [
        row["error"]
        for row in found["rows"]
        if (row["quantity"], row["statistic"]) == ("ttft_s", "p50")
    ]
    assert errors == pytest.approx([10.0] * 4)
    (ttft,) = (r for r in found["targets"] if (r["quantity"], r["statistic"]) == ("ttft_s", "p50"))
    assert ttft["met"]
    assert "the client was late" in markdown(found)


def test_a_workload_that_is_synthetic_says_so(asked: dict[str, list[Any]]) -> None:
    found = fidelity.measure(parity_parser().parse_args(WORDS), Console(quiet=True))
    assert found["synthetic"] == {"burstgpt": MADE_UP}
    page = markdown(found)
    assert "## burstgpt (ARRIVALS DRAWN, LENGTHS DRAWN)\n" in page
    assert "## azure_code\n" in page


def test_points_are_simulated_as_calibrated_and_at_the_speed_of_the_real_run(
    asked: dict[str, list[Any]],
) -> None:
    asked["speeds"] = [1.25]
    found = fidelity.measure(parity_parser().parse_args(WORDS), Console(quiet=True))
    assert asked["time_scale"] == [1.0, 1.25] * 8
    (ttft,) = (r for r in found["targets"] if (r["quantity"], r["statistic"]) == ("ttft_s", "p50"))
    assert ttft["median"] == pytest.approx(10.0)
    assert ttft["median_at_their_speed"] == pytest.approx(37.5)
    assert "TTFT P50 10 % (+10 %)" in found["headline"]
    assert "| times | 1.25, 1.25 | 1.25, 1.25 |" in markdown(found)


def test_a_run_whose_speed_cannot_be_told_is_simulated_as_calibrated_alone(
    asked: dict[str, list[Any]],
) -> None:
    asked["speeds"] = [None]
    found = fidelity.measure(parity_parser().parse_args(WORDS), Console(quiet=True))
    assert asked["time_scale"] == [1.0] * 8
    assert found["targets"][0]["median_at_their_speed"] is None
    assert "| times | ?, ? | ?, ? |" in markdown(found)


def test_a_failed_calibration_ends_it(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, list[Any]]
) -> None:
    monkeypatch.setattr(parity_runs, "calibrate", lambda words: 1)
    with pytest.raises(RunError, match="calibration failed"):
        fidelity.measure(parity_parser().parse_args(WORDS), Console(quiet=True))
    assert not asked["points"]


def test_kept_runs_are_not_calibrated_anew(asked: dict[str, list[Any]]) -> None:
    fidelity.measure(parity_parser().parse_args([*WORDS, "--keep"]), Console(quiet=True))
    assert asked["points"]
    assert not asked["profiles"]
