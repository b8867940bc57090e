"""`python -m harness.calibrate`, as it is typed."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from omegaconf import OmegaConf

from harness.calibrate import serving, zoo
from harness.calibrate.__main__ import main
from harness.calibrate.profiles import DECODE_STEPS
from harness.configuration.config import typed
from harness.configuration.options import plain
from harness.cost.hardware import Hardware
from harness.cost.model import CostModel


def predicted(tmp_path: Path, rows: list[dict[str, object]]) -> pd.DataFrame:
    pd.DataFrame(rows).to_csv(tmp_path / "cells.csv", index=False)
    paths = ["--cells", str(tmp_path / "cells.csv"), "--out", str(tmp_path / "out.csv")]
    assert main(["predict", *paths]) == 0
    return pd.read_csv(tmp_path / "out.csv")


def cell(model: str, device: str, tp: int, input_len: int, batch: int) -> dict[str, object]:
    return {"model": model, "device": device, "tp": tp, "input_len": input_len, "batch": batch}


def test_predict_gives_what_the_simulator_charges(tmp_path: Path) -> None:
    rows = [
        cell("llama2_7b", "H800", 1, 512, 4),
        cell("qwen-72b", "h20", 4, 1024, 1),
        cell("llama2_7b", "H800", 1, 16, 32),
    ]
    out = predicted(tmp_path, rows)
    assert list(out.source) == ["measured", "datasheet", "measured"]
    assert list(out.input_len) == [512, 1024, 16]
    cost = CostModel(zoo.model("llama2-7b"), zoo.device("h800_sxm"))
    assert out.prefill_s[0] == pytest.approx(cost.mixed_step([(0, 512)] * 4, 0, 0))
    steps = [cost.decode_step(4, 4 * (513 + i))[0] for i in range(DECODE_STEPS)]
    assert out.decode_s[0] == pytest.approx(sum(steps) / DECODE_STEPS)


HEADER = b"model,device,tp,input_len,batch\n"
GOOD = HEADER + b"llama2-7b,A100,1,16,1\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (HEADER + b"gpt-5,A100,1,16,1\n", "model 'gpt-5' is unknown; valid: baichuan-7b"),
        (HEADER + b"llama2-7b,tpu,1,16,1\n", "device 'tpu' is unknown; valid: a10"),
        (HEADER + b"llama2-7b,A100,3,16,1\n", "tp=3 does not divide the 32 heads"),
        (HEADER + b"llama2-7b,A100,16,16,1\n", "wider than a node of hardware=a100_sxm"),
        (HEADER + b"llama2-7b,A10,8,16,1\n", "which has 4 devices; valid: 1 to 4"),
        (HEADER + b"llama2-7b,A100,1,0,1\n", "input_len=0 is not a whole number"),
        (b"model\nllama2-7b\n", "lacks device, tp, input_len, batch"),
        (GOOD + b",A100,1,16,1\n", "model '' is unknown"),
        (GOOD + b"llama2-7b,,1,16,1\n", "device '' is unknown"),
        (HEADER + b",A100,1,16,1\n", "model '' is unknown"),
        (GOOD + b"NA,A100,1,16,1\n", "model 'NA' is unknown"),
        (GOOD + b"llama2-7b,A100,1,16\n", "row 2: batch= is not a whole number from 1 to 1e+15"),
        (GOOD + b'"llama2-7b,A100,1,16,1\n', "is not a CSV file"),
        (b"", "is not a CSV file: No columns"),
        (b"\x89PNG\xff\xfe\n", "is not a CSV file"),
    ],
)
def test_what_cannot_be_predicted_is_said(
    content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells, out = tmp_path / "cells.csv", tmp_path / "out.csv"
    cells.write_bytes(content)
    assert main(["predict", "--cells", str(cells), "--out", str(out)]) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_a_table_without_rows_has_predictions_of_none(tmp_path: Path) -> None:
    cells, out = tmp_path / "cells.csv", tmp_path / "out.csv"
    cells.write_bytes(HEADER)
    assert main(["predict", "--cells", str(cells), "--out", str(out)]) == 0
    assert out.read_bytes() == HEADER.strip() + b",prefill_s,decode_s,source\n"


@pytest.mark.parametrize("where", ["missing/out.csv", ".", "cells.csv/out.csv"])
def test_an_output_that_cannot_be_written_is_said(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cells.csv").write_bytes(GOOD)
    paths = ["--cells", str(tmp_path / "cells.csv"), "--out", str(tmp_path / where)]
    assert main(["predict", *paths]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["cells.csv"]


def test_missing_profiles_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--profiles", str(tmp_path), "--conf", str(tmp_path)]) == 2
    assert "set HARNESS_DATA_DIR" in capsys.readouterr().err


@pytest.mark.live
def test_measure_profiles_the_engine_and_writes_a_hardware_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What it writes is looked at, not how well it fits. A low load is mostly waiting.
    monkeypatch.setattr(serving, "ROUNDS", 1)
    monkeypatch.setattr(serving, "LOADS", (0.9,))
    monkeypatch.setattr(serving, "MIXES", (((8, 256), (2, 32)), ((8, 64), (8, 32))))
    out = tmp_path / "local.yaml"
    grid = ["--lengths", "16,128", "--batches", "1,4", "--repeats", "1", "--num-requests", "12"]
    assert main(["measure", *grid, "--out", str(out)]) == 0
    hardware = typed(plain(OmegaConf.load(out)), Hardware, "hardware")
    assert hardware.source == "measured"
    assert hardware.pcie_peak_bytes_per_s == hardware.pcie_bytes_per_s  # nothing says more
    cost = CostModel(zoo.model("tiny-llama"), hardware)
    assert cost.source == "measured"
    assert 0 < cost.turnaround_s < 1
    assert 1e-5 < cost.decode_step(1, 16)[0] < 1
    assert cost.mixed_step([(0, 128)] * 4, 0, 0) > cost.mixed_step([(0, 16)], 0, 0)
