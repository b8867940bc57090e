"""Where a run's results go besides its folder: figures; and what it notes of the machine."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hydra.utils import get_method

from harness.comparing import conditions
from harness.records.gpu_monitor import GpuMonitor, devices
from harness.records.manifest import git_revision, hash_of, machine, versions
from harness.records.run_folder import FinishedRun
from plots import compare
from plots.__main__ import main
from tests.unit.metrics.service import Service, steady, write_run

PNG = b"\x89PNG"


def test_a_run_is_drawn_from_its_folder_alone(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", steady(100))
    figure = get_method("plots.run.draw")(path)
    assert figure == path / "run.png"
    assert figure.read_bytes().startswith(PNG)


def test_a_run_without_a_single_token_is_drawn_too(tmp_path: Path) -> None:
    service = Service((0.0, 5))
    service.send(0)
    service.fail(0)
    path = str(write_run(tmp_path / "run", service))
    assert main(["run", path]) == 0
    assert (tmp_path / "run" / "run.png").read_bytes().startswith(PNG)
    assert main(["compare", path, path, "--out", str(tmp_path / "both.png")]) == 0


def test_compare_draws_runs_and_prints_their_ratios(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write_run(tmp_path / "a", steady(80), system="fcfs")
    second = write_run(tmp_path / "b", steady(80, seed=1), system="fair", engine_name="torch")
    out = tmp_path / "figure.png"
    assert main(["compare", str(first), str(second), "--out", str(out)]) == 0
    assert out.read_bytes().startswith(PNG)
    text = capsys.readouterr().out
    runs = [FinishedRun.load(path).summary["ttft_s"]["mean"] for path in (first, second)]
    assert "x1.00" in text
    assert f"x{runs[1] / runs[0]:.2f}" in text
    assert "tiny" not in text  # what all runs share is not in their headers
    assert text.count("differ") == 1
    assert "The runs differ in engine (sim; torch)." in text


def test_compare_says_why_a_percentile_is_missing_as_the_run_does(tmp_path: Path) -> None:
    few = Service((0.0, 1))  # one request of one token has no TPOT at all
    few.send(0)
    few.tokens(0, 1.0)
    few.complete(0)
    paths = [write_run(tmp_path / "a", steady(80)), write_run(tmp_path / "b", few)]
    metric, *runs = (list(column.cells) for column in compare.table(paths).columns)
    rows = dict(zip(metric, zip(*runs, strict=True), strict=True))
    assert rows["TTFT P99"] == ("n<662", "n<662")
    assert rows["TPOT P99"] == ("n<662", "none")
    assert rows["TPOT P99.9"] == ("n<6636", "none")


def test_compare_draws_beside_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write_run(tmp_path / "runs" / "a", steady(5))
    monkeypatch.chdir(first)
    assert main(["compare", "."]) == 0
    assert (tmp_path / "runs" / "compare.png").read_bytes().startswith(PNG)
    assert not (first / "compare.png").exists()


def edited(path: Path, file: str, **values: object) -> None:
    """With `values` in place of what the top level of a run's JSON `file` held."""
    content = json.loads((path / file).read_text())
    (path / file).write_text(json.dumps(content | values))


@pytest.mark.parametrize(
    ("file", "values", "said", "slo_alone"),
    [
        ("manifest.json", {"schedule_sha256": "1" * 64}, "schedule: their numbers", False),
        ("manifest.json", {"closed_loop": 8}, "open or closed loop: their numbers", False),
        (
            "manifest.json",
            {"choices": {"system": "fcfs", "workload": "coins", "model": "huge"}},
            "model: their numbers",
            False,
        ),
        (
            "summary.json",
            {"slo": {"name": "strict", "ttft_s": 0.1, "tbt_s": 0.02, "definition": "absolute"}},
            "SLO: goodput and SLO attainment",
            True,
        ),
    ],
)
def test_compare_gives_no_ratio_across_what_does_not_compare(
    tmp_path: Path, file: str, values: dict[str, object], said: str, slo_alone: bool
) -> None:
    paths = [write_run(tmp_path / name, steady(200)) for name in "abc"]
    edited(paths[2], file, **values)
    runs = [FinishedRun.load(path) for path in paths]
    table = compare.table(paths)
    warning, *_, error = str(table.caption).splitlines()
    assert warning == f"The runs differ in {said} do not compare."
    compare.draw([paths[0], paths[2]], out := tmp_path / "figure.svg")
    assert ("less the first arm" in out.read_text()) == slo_alone
    assert error == "simulator error: not measured for TEST-1"
    assert conditions.differences(runs) == [warning]
    assert conditions.differences(runs[:2]) == []
    like, unlike = (["(x" in cell for cell in table.columns[i].cells] for i in (2, 3))
    slo_rows = [row.startswith(("goodput", "SLO")) for row in table.columns[0].cells]
    assert sum(like) > 12
    assert all(ratio for ratio, of_slo in zip(like, slo_rows, strict=True) if of_slo)
    kept = [slo_alone and not of_slo for of_slo in slo_rows]
    assert unlike == [ratio and keep for ratio, keep in zip(like, kept, strict=True)]
    pair = compare.table([paths[0], paths[2]])
    assert any("(x" in cell for cell in pair.columns[1].cells) == slo_alone
    headers = [str(column.header) for column in table.columns[1:]]
    assert ("huge" in headers[2], "coins" in headers[2]) == (("choices" in values),) * 2
    assert ("tiny" in headers[0], "dice" in headers[0]) == (("choices" in values),) * 2


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"engine_name": "torch"}, "engine (sim; torch)"),
        (
            {"hardware": {"name": "b", "device": "A10", "num_devices": 1}},
            "devices (2 x TEST-1; 1 x A10)",
        ),
        (
            {"engine": {"num_kv_blocks": {"m": 64}, "block_tokens": 32}},
            "KV memory (1,600 tokens; 2,048 tokens)",
        ),
        ({"versions": {"python": "2.7"}}, "python (3.11; 2.7)"),
        ({"sources": {"a.py": "0", "b.py": "1", "c.py": "2"}}, "sources (b.py)"),
    ],
)  # fmt: skip
def test_compare_says_on_what_else_the_runs_differ(
    tmp_path: Path, values: dict[str, object], said: str
) -> None:
    paths = [write_run(tmp_path / name, steady(20)) for name in "ab"]
    for path in paths:
        edited(
            path, "manifest.json", engine={"num_kv_blocks": {"m": 100}, "block_tokens": 16},
            versions={"python": "3.11"}, sources={"a.py": "0", "b.py": "0"},
        )  # fmt: skip
    assert conditions.differences([FinishedRun.load(path) for path in paths]) == []
    edited(paths[1], "manifest.json", **values)
    runs = [FinishedRun.load(path) for path in paths]
    assert conditions.differences(runs) == [f"The runs differ in {said}."]
    assert str(compare.table(paths).caption).startswith("The runs differ in ")


def test_an_invalid_run_is_named_and_has_no_ratio(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / name, steady(200)) for name in "abc"]
    edited(paths[1], "summary.json", verdict={"status": "INVALID", "reasons": ["it was late"]})
    table = compare.table(paths)
    assert str(table.caption).startswith("INVALID, without ratios: b: it was late")
    ratios = [any("(x" in cell for cell in column.cells) for column in list(table.columns)[1:]]
    assert ratios == [True, False, True]
    beside = compare.table(paths[1:])
    assert not any("(x" in cell for column in beside.columns for cell in column.cells)


def test_the_figure_says_what_does_not_compare(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / name, steady(20)) for name in "ab"]
    edited(paths[1], "manifest.json", schedule_sha256="1" * 64)
    compare.draw(paths, out := tmp_path / "figure.svg")
    assert "The runs differ in schedule" in out.read_text()


def test_compare_refuses_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(tmp_path)]) == 2
    assert "is not a complete run's folder" in capsys.readouterr().err


def test_a_missing_folder_is_told_before_anything_is_printed_or_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = str(write_run(tmp_path / "run", steady(20))), tmp_path / "none" / "figure.png"
    assert main(["compare", path, path, "--out", str(out)]) == 2
    told = capsys.readouterr()
    assert told.err == f"error: --out {out}: there is no folder {out.parent}\n"
    assert not told.out


def test_a_figure_that_cannot_be_written_is_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_run(tmp_path / "run", steady(5))
    out = tmp_path / "figure.png"
    out.mkdir()
    assert main(["compare", str(path), "--out", str(out)]) == 1
    assert f"error: cannot write {out}: Is a directory" in capsys.readouterr().err


def test_config_hash_sees_values_and_not_their_order() -> None:
    assert hash_of({"a": 1, "b": 2}) == hash_of({"b": 2, "a": 1})
    assert hash_of({"a": 1}) != hash_of({"a": 2})


def test_the_machine_and_versions_are_noted() -> None:
    found = machine()
    assert found["num_cores"] >= 1
    assert found["memory_bytes"] > 2**20
    assert found["cpu"]
    assert {"python", "numpy"} <= versions().keys()
    revision = git_revision()
    assert revision is None or len(revision["revision"]) == 40


def test_the_gpu_monitor_reports_each_gpu_or_none() -> None:
    with GpuMonitor() as monitor:
        began = datetime.now(UTC)
    summary = monitor.summary()
    assert began <= datetime.now(UTC)
    if devices():
        assert summary is not None
        assert len(summary["gpus"]) == len(devices())
        assert all(gpu["peak_memory_bytes"] > 0 for gpu in summary["gpus"])
    else:
        assert summary is None
        assert monitor.rows == []
