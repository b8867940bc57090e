"""What `python -m harness.calibrate` cannot do it says at once, and leaves no file."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from harness.calibrate import __main__ as commands
from harness.calibrate import measure, measure_vllm
from harness.calibrate.__main__ import main


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever takes long fails the test: what is refused is refused before."""
    for module, name in (
        (commands, "fit_law"),
        (commands, "leave_one_out"),
        (measure, "run_engine"),
        (measure_vllm, "serve"),
    ):
        monkeypatch.setattr(module, name, lambda *rest: pytest.fail("it was started"))


def files(folder: Path) -> dict[str, str]:
    return {str(p): p.read_text() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("engine", ["torch", "vllm"])
@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("missing/x.yaml", "cannot be written: No such file or directory"),
        ("a.txt/x.yaml", "cannot be written: Not a directory"),
        (".", "is a folder: give the name of a file"),
        ("x" * 300, "cannot be written: File name too long"),
    ],
)
def test_a_profile_that_cannot_be_written_is_not_measured(
    engine: str, out: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("kept")
    before = files(tmp_path)
    assert main(["measure", "--engine", engine, "--out", str(tmp_path / out)]) == 2
    assert said in capsys.readouterr().err
    assert files(tmp_path) == before


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("command", "option"), [("fit", "--conf"), ("fit", "--results"), ("crossval", "--results")]
)
@pytest.mark.parametrize("where", ["a.txt", "a.txt/below"])
def test_a_file_where_a_folder_is_to_be_is_found_before_fitting(
    command: str,
    option: str,
    where: str,
    data_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "a.txt").write_text("kept")
    folders = {"--conf": tmp_path / "conf"} if command == "fit" else {}
    folders |= {"--results": tmp_path / "new" / "results", option: tmp_path / where}
    given = [word for each, path in folders.items() for word in (each, str(path))]
    assert main([command, "--profiles", str(data_dir / "profiles"), *given]) == 2
    assert f"{option} {tmp_path / where} cannot be written" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [tmp_path / "a.txt"]


LINE = "model,device,tp,input_len,batch,p50_prefill_s,p50_decode_s"
ROW = "llama2_7b,A100,1,16,1,0.01,0.01"


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("command", ["fit", "crossval"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a CSV file: No columns"),
        ('"', "is not a CSV file"),
        ("a,b\n1,2\n", "lacks model, device, tp, input_len, batch, p50_prefill_s"),
        (f"{LINE}\n{ROW}\n", "has no column clean of True and False"),
        (f"{LINE},clean\n{ROW},yes\n", "has no column clean of True and False"),
        (f"{LINE},clean\n{ROW},False\n", "has no clean rows"),
        (f"{LINE},clean\nqwen1_5_moe_a2_7b_chat{ROW[9:]},True\n", "has no clean rows"),
        (f"{LINE},clean\n{ROW[:-4]}fast,True\n", "the column p50_decode_s holds what is no"),
        (f"{LINE},clean\n{ROW[:-4]}0,True\n", "holds a number that is not above 0"),
        (f"{LINE},clean\n{ROW[:-4]},True\n", "holds a number that is not above 0"),
        (f"{LINE},clean\ngpt_5{ROW[9:]},True\n", "model 'gpt_5' is unknown"),
    ],
)
def test_profiles_that_are_none_are_refused(
    command: str, text: str, said: str, data_dir: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    coefficients = data_dir / "profiles" / "distserve_coefficients.csv"
    (tmp_path / coefficients.name).write_text(coefficients.read_text())
    (tmp_path / "engine_latency.csv").write_text(text)
    before, results = files(tmp_path), str(tmp_path / "results")
    conf = ["--conf", str(tmp_path / "conf")] if command == "fit" else []
    assert main([command, "--profiles", str(tmp_path), "--results", results, *conf]) == 2
    assert said in capsys.readouterr().err
    assert files(tmp_path) == before


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("text", [None, "", "engine,model\n1,2\n"])
def test_coefficients_to_compare_with_are_read_before_fitting(
    text: str | None, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    latencies = data_dir / "profiles" / "engine_latency.csv"
    (tmp_path / latencies.name).write_text(latencies.read_text())
    if text is not None:
        (tmp_path / "distserve_coefficients.csv").write_text(text)
    paths = ["--results", str(tmp_path / "results"), "--conf", str(tmp_path / "conf")]
    assert main(["fit", "--profiles", str(tmp_path), *paths]) == 2
    assert "distserve_coefficients.csv" in capsys.readouterr().err
    assert not (tmp_path / "conf").exists()


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(("option", "value"), [("--repeats", "5"), ("--num-threads", "1")])
def test_what_is_of_our_engine_alone_is_not_ignored_with_vllm(
    option: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "x.yaml")]
    assert main(["measure", "--engine", "vllm", option, value, *out]) == 2
    assert f"{option} {value} is of --engine torch alone" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


@pytest.mark.usefixtures("nothing_runs")
def test_a_servers_gpu_is_refused_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure_vllm, "devices", list)
    words = ["--engine", "vllm", "--hardware", "h100x1", "--out", str(tmp_path / "x.yaml")]
    assert main(["measure", *words]) == 2
    assert "runs on this machine's cpu: leave --hardware out" in capsys.readouterr().err


def predicted(tmp_path: Path, input_len: object, batch: object) -> int:
    row = {"model": "llama2-7b", "device": "A100", "tp": 1, "input_len": input_len, "batch": batch}
    pd.DataFrame([row]).to_csv(tmp_path / "cells.csv", index=False)
    paths = ["--cells", str(tmp_path / "cells.csv"), "--out", str(tmp_path / "out.csv")]
    return main(["predict", *paths])


def test_a_batch_of_any_size_is_predicted_without_a_list_of_it(tmp_path: Path) -> None:
    times = []
    for batch in (10**11, 10**12, 10**15):
        assert predicted(tmp_path, 16, batch) == 0
        times.append(pd.read_csv(tmp_path / "out.csv").prefill_s.item())
    assert times[1] == pytest.approx(10 * times[0], rel=1e-6)
    assert times[2] == pytest.approx(1000 * times[1], rel=1e-6)


@pytest.mark.parametrize("count", [10**15 + 1, 1e300, "inf"])
def test_a_count_beyond_what_floating_point_counts_is_refused(
    count: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for cell in ((count, 1), (16, count)):
        assert predicted(tmp_path, *cell) == 2
        assert "is not a whole number from 1 to 1e+15" in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()
