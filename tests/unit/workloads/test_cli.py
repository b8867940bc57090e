"""python -m workloads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.schedule import Provenance, Schedule
from tests.unit.workloads.conftest import Make
from workloads.__main__ import main
from workloads.describe import measure


@pytest.fixture
def home(data_dir: Path, tmp_path: Path) -> list[str]:
    return [f"data.dir={data_dir}", f"data.cache_dir={tmp_path}", "data.download=false"]


def test_describe(home: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "azure_code", *home]) == 0
    said = capsys.readouterr().out
    for fact in ("8,819", "2.566 req/s", "4.18", "13.15", "CC-BY-4.0", "█"):
        assert fact in said
    assert "not a recording" in said
    assert "all of it is one" in said
    assert "full file" in said


def test_a_synthetic_trace_is_announced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    away = ["data.dir=null", f"data.cache_dir={tmp_path}", "data.download=false"]
    assert main(["describe", "burstgpt", "workload.num_requests=384", *away]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "burstgpt (ARRIVALS DRAWN, LENGTHS FROM PUBLISHED STATISTICS)" in said
    assert "synthetic trace" in said


def test_schedule_writes_what_describe_describes(
    home: list[str], make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "s.parquet"
    assert main(["schedule", "azure_code", str(out), "workload.scale.rate=0.5", *home]) == 0
    expected = make("azure_code", "workload.scale.rate=0.5")
    assert Schedule.load(out).sha256() == expected.sha256()
    assert expected.sha256() in capsys.readouterr().out


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    for name in ("aegaeon", "arxiv", "azure_code", "azure_conv", "burstgpt", "hf", "lmsys"):
        assert name in said


@pytest.mark.parametrize(
    "arguments",
    [
        ["describe", "azure"],
        ["describe", "azure_code", "workload.scale.rat=2"],
        ["describe", "azure_code", "faster"],
        ["describe", "azure_code", "model=[0]"],
        ["describe", "azure_code", "workload.scale.rate=[1"],
        ["schedule", "azure_code", "/none/such/s.parquet"],
        ["schedule", "azure_code", "out.csv"],
    ],
)
def test_bad_commands_exit_with_2_and_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1


def test_too_short_to_measure() -> None:
    schedule = Schedule(
        np.array([0.0, 0.5]),
        ["default"] * 2,
        np.array([1, 1]),
        np.array([1, 1]),
        Provenance("", "", [], "", ""),
    )
    assert np.isnan(measure(schedule).dispersion)
