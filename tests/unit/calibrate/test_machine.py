"""What of a hardware profile is measured on which machine, and what a file of one keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from harness.calibrate import machine, measure, zoo
from harness.calibrate.__main__ import main
from harness.calibrate.serving import Iterations
from harness.configuration.config import typed
from harness.configuration.options import plain
from harness.cost.hardware import Hardware
from harness.cost.law import law
from harness.cost.model import CostModel
from harness.cost.terms import decode_s, mixed_s
from harness.engine.engine import TorchEngine
from harness.errors import UsageError
from harness.model_spec import ModelSpec

LOCAL, H100 = zoo.hardware("local"), zoo.hardware("h100x1")
NAMED = "NVIDIA H100 80GB HBM3"  # as torch names it


@pytest.mark.parametrize(
    ("profile", "device"),
    [
        ("local", "cpu"),
        ("h100x1", NAMED),
        ("a10x4", "NVIDIA A10"),
        ("a100x1", "NVIDIA A100-SXM4-80GB"),
        ("h20x213", "NVIDIA H20"),
        ("h800x8", "NVIDIA H800"),
    ],
)
def test_a_profile_is_taken_for_its_own_device(profile: str, device: str) -> None:
    machine.check_device(zoo.hardware(profile), device)


@pytest.mark.parametrize(
    ("profile", "device", "said"),
    [
        ("local", NAMED, "whose peaks and links cannot be measured here: name its profile with"),
        ("h100x1", "cpu", "--hardware h100x1 is H100-SXM5-80GB, but the engine runs on this"),
        ("a10x4", "NVIDIA A100-SXM4-80GB", "--hardware a10x4 is A10, but the engine runs on"),
        ("h100x1", "NVIDIA H200", "but the engine runs on NVIDIA H200"),
    ],
)
def test_a_profile_of_another_device_is_refused(profile: str, device: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        machine.check_device(zoo.hardware(profile), device)


def test_only_a_gpus_profile_is_named() -> None:
    assert machine.base(None).device == "cpu"
    assert asdict(machine.base("h100x1")) == asdict(H100)
    for name in ("local", "h100"):
        with pytest.raises(UsageError, match=rf"--hardware {name} is not .*; valid: a100pcie_x16"):
            machine.base(name)


def made(spec: ModelSpec, slower: float) -> measure.MeasuredEngine:
    """What an engine would be seen to do whose constants are the law's on an H100."""
    terms = law(spec, H100, H100.calibration)
    terms = type(terms)(**{f.name: slower * getattr(terms, f.name) for f in fields(terms)})
    cells = machine.as_cells(spec, terms, measure.grid(spec, [16, 128, 512], [1, 4, 8]))
    rng = np.random.default_rng(0)
    chunks = np.repeat([0.0, 1.0], 20)
    decodes, steps = rng.integers(1, 16, 40).astype(float), np.ones(40)
    tokens = decodes + chunks * rng.integers(8, 512, 40)
    pairs, context = (tokens - decodes) ** 2 / 2, 200 * decodes
    seconds = np.where(
        chunks > 0,
        mixed_s(terms, tokens, pairs, chunks, decodes, context),
        decode_s(terms, decodes, context),
    )
    seen = Iterations(tokens, pairs, chunks, decodes, context, steps, seconds + 5e-4)
    return measure.MeasuredEngine(cells, seen, 0.5, {"torch": "2"}, NAMED)


def measured(
    models: Sequence[str], out: Path, monkeypatch: pytest.MonkeyPatch, slower: float = 1.0
) -> Hardware:
    """`measure --hardware h100x1` of one model after the other, on an engine that is made up."""
    monkeypatch.setattr(measure, "devices", lambda: [{"name": NAMED}])
    monkeypatch.setattr(measure, "run_engine", lambda spec, *rest: made(spec, slower))
    for model in models:
        assert main(["measure", "--hardware", "h100x1", "--model", model, "--out", str(out)]) == 0
    return read(out)


def read(out: Path) -> Hardware:
    profile: Hardware = typed(plain(OmegaConf.load(out)), Hardware, "hardware")
    return profile


def test_of_a_gpu_nothing_but_the_calibration_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def peaks() -> tuple[float, float]:
        raise AssertionError("the peaks of the host are not those of its GPU")

    monkeypatch.setattr(machine, "peaks", peaks)
    found = measured(["llama2-7b"], tmp_path / "here.yaml", monkeypatch)
    said = ("name", "source", "calibration")
    for name in (f.name for f in fields(Hardware) if f.name not in said):
        assert getattr(found, name) == pytest.approx(getattr(H100, name)), name
    assert (found.name, found.source) == ("here", "datasheet; calibration measured")
    assert list(found.calibration.measured) == ["llama2-7b_tp1"]
    ours = CostModel(zoo.model("llama2-7b"), found).decode_step(8, 1600)[0]
    made_up = law(zoo.model("llama2-7b"), H100, H100.calibration)
    assert ours == pytest.approx(decode_s(made_up, 8, 1600), rel=0.1)


def test_models_of_one_gpu_are_collected_and_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "here.yaml"
    first = measured(["llama3.2-1b", "llama2-7b"], out, monkeypatch)
    assert list(first.calibration.measured) == ["llama3.2-1b_tp1", "llama2-7b_tp1"]
    again = measured(["llama3.2-1b"], out, monkeypatch, slower=2.0)
    pairs = again.calibration.measured
    assert sorted(pairs) == sorted(first.calibration.measured)
    assert pairs["llama2-7b_tp1"] == first.calibration.measured["llama2-7b_tp1"]
    before = first.calibration.measured["llama3.2-1b_tp1"]
    assert pairs["llama3.2-1b_tp1"].launch_s > 1.3 * before.launch_s
    told = [line for line in out.read_text().splitlines() if line.startswith(machine.MODEL_LINE)]
    assert [line.split(" with ")[1].split(",")[0] for line in told] == ["llama2-7b", "llama3.2-1b"]
    assert out.read_text().count("executes of serving with prompts") == 2


def test_the_law_learns_from_models_that_were_measured_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = measured(["llama3.2-1b"], tmp_path / "small.yaml", monkeypatch)
    both = measured(["llama2-13b", "llama3.2-1b"], tmp_path / "both.yaml", monkeypatch)
    truth = law(zoo.model("llama3-8b"), H100, H100.calibration).token_s
    far, near = (
        abs(law(zoo.model("llama3-8b"), H100, each.calibration).token_s / truth - 1)
        for each in (small, both)
    )
    assert near < far


def test_a_file_of_anything_else_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "here.yaml"
    monkeypatch.setattr(measure, "run_engine", lambda *rest: pytest.fail("measured"))
    others = {
        "holds measurements of cpu, not of H100-SXM5-80GB": (
            zoo.CONF / "hardware" / "local.yaml"
        ).read_text(),
        "no measured profile of a GPU": (zoo.CONF / "hardware" / "h100x1.yaml").read_text(),
        "and is no measured profile": "- a\n- list\n",
        "is no measured profile of": "a: [\n",
    }
    for said, text in others.items():
        out.write_text(text)
        assert main(["measure", "--hardware", "h100x1", "--out", str(out)]) == 2
        assert said in capsys.readouterr().err
        assert out.read_text() == text


def test_a_cpus_file_is_written_anew_and_says_what_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "local.yaml"
    assert machine.kept(zoo.CONF / "hardware" / "local.yaml", LOCAL) == {}
    text = machine.profile_yaml(replace(LOCAL, dense_flop_per_s=1.0), LOCAL, ["# a model"])
    out.write_text(text)
    assert (read(out).name, read(out).source, read(out).dense_flop_per_s) == (
        "local",
        "measured",
        1,
    )
    comments = " ".join(line for line in text.splitlines() if line.startswith("#"))
    copied = comments.partition("not measured:")[2]
    assert "memory sizes, NVLink, NIC, SSD" in copied
    assert "# a model" in copied


@pytest.mark.live
def test_a_gpu_that_is_not_named_is_found_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real worker, whose device is made up."""
    monkeypatch.setattr(TorchEngine, "resolved", lambda self: {"devices": [NAMED]})
    monkeypatch.setattr(measure, "served", lambda *rest: pytest.fail("measured"))
    out = tmp_path / "local.yaml"
    assert main(["measure", "--out", str(out)]) == 2
    assert "--hardware" in capsys.readouterr().err
    assert not out.exists()


def test_a_gpu_that_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "devices", list)
    out = tmp_path / "local.yaml"
    assert main(["measure", "--hardware", "h100x1", "--out", str(out)]) == 2
    assert "leave --hardware out" in capsys.readouterr().err
    assert not out.exists()


def test_a_cpus_peak_counts_the_experts_that_a_token_is_sent_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "peaks", lambda: (1.0, 1e9))
    cells = SimpleNamespace(tokens=np.array([100.0]), prefill_s=np.array([0.5]))
    found: Any = SimpleNamespace(cells=cells, layer_load_s=1.0)
    spec = zoo.model("tiny-mixtral")
    reached = measure.with_peaks(LOCAL, spec, found).dense_flop_per_s
    assert reached == 2 * spec.num_layers * spec.token_layer_params * 100 / 0.5
