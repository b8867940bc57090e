"""The simulator's speed, drawn from a small result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from plots import bench_sim, style
from plots.__main__ import main


def result(folder: Path) -> None:
    rows = [
        {"requests": n, "instances": i, "stepping": stepping, "requests_per_s": 1e4 / i,
         "peak_memory_gib": 0.1}
        for n, i, stepping in [
            (100, 1, "per token"), (1000, 1, "macro"), (100, 1, "macro"), (100, 256, "macro"),
        ]
    ]  # fmt: skip
    about = {"machine": {"cpu": "C", "num_cores": 2}, "git": {"revision": "abc", "dirty": True}}
    rows[0]["synthetic"] = ["arrivals drawn"]
    (folder / "bench_sim.json").write_text(json.dumps(about | {"rows": rows}))


def test_a_line_for_each_number_of_instances_in_order(tmp_path: Path, monkeypatch: Any) -> None:
    drawn: list[Figure] = []
    save = style.save
    monkeypatch.setattr(bench_sim, "save", lambda made, out: drawn.append(made) or save(made, out))
    result(tmp_path)
    bench_sim.draw(tmp_path)
    lines = {line.get_label(): list(line.get_xdata()) for line in drawn[0].axes[0].lines}
    assert lines == {
        "1 instance, macro": [100, 1000],
        "1 instance, per token": [100],
        "256 instances, macro": [100],
    }
    assert drawn[0].get_label() == (
        "ARRIVALS DRAWN\nC, 2 cores, one process · git abc with changes"
    )


def test_the_command_draws_beside_the_result(tmp_path: Path) -> None:
    result(tmp_path)
    assert main(["bench_sim", str(tmp_path)]) == 0
    assert (tmp_path / "bench_sim.png").stat().st_size > 0
