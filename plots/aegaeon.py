"""What Aegaeon's figures share: runs as tables, how each system looks, and what is published.

Every figure leaves a PNG, a PDF and the CSV that both were drawn from, which is what the claims
(`results/claims`) are computed from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.claims.expressions import GOOD, Beyond, crossing
from harness.experiments.points import Point
from harness.files import write_text
from harness.schedule import Synthetic, synthetic_kinds
from plots.style import PALETTE, save

# (label, colour, marker, line). _artifact: as Aegaeon's authors simulated it.
SYSTEMS: dict[str, tuple[str, Any, str, Any]] = {
    "aegaeon": ("Aegaeon", PALETTE[0], "o", "-"),
    "aegaeon_artifact": ("Aegaeon (artifact)", PALETTE[0], "o", ":"),
    "serverlessllm": ("ServerlessLLM", PALETTE[1], "s", "-"),
    "serverlessllm_plus": ("ServerlessLLM+", PALETTE[2], "^", "-"),
    "muxserve": ("MuxServe", PALETTE[3], "D", "-"),
    "serverlessllm_artifact": ("ServerlessLLM (artifact)", PALETTE[1], "s", ":"),
    "serverlessllm_plus_artifact": ("ServerlessLLM+ (artifact)", PALETTE[2], "^", ":"),
    "muxserve_artifact": ("MuxServe (artifact)", PALETTE[3], "D", ":"),
}
END_TO_END = tuple(SYSTEMS)  # in the order of legends
# ServerlessLLM by how fast it loads checkpoints, in experiments called …_bandwidth. In the others
# ours loads at the links' 50 GB/s, the artifact's at 16.
LOADING: dict[str, tuple[str, Any, str, Any]] = {
    "serverlessllm_16": ("ServerlessLLM, 16 GB/s", PALETTE[5], "", "-"),
    "serverlessllm_32": ("ServerlessLLM, 32 GB/s", PALETTE[5], "", "--"),
    "serverlessllm_artifact_32": ("ServerlessLLM (artifact), 32 GB/s", PALETTE[6], "", (0, (1, 1))),
    "serverlessllm_artifact_50": ("ServerlessLLM (artifact), 50 GB/s", PALETTE[6], "", (0, (4, 2))),
}
SYSTEMS |= LOADING


def table(points: Sequence[Point]) -> pd.DataFrame:
    """A row per run: experiment, system, seed, engine, hardware, the summary's main numbers, and
    the sweep's overrides by the last part of their keys (which say `serverlessllm_artifact` where
    the system's name does not). A run that the system refused has no numbers."""
    rows = []
    for point in points:
        row: dict[str, Any] = {"experiment": point.experiment, "seed": point.seed}
        row["refused"] = point.path is None
        if point.path is not None:
            row |= _numbers(point.path)
        rows.append(row | overrides(point))
    return pd.DataFrame(rows)


def beside(rows: pd.DataFrame) -> pd.DataFrame:
    """`rows`, the experiments on rates of loading, and on inputs beyond the published ones, counted
    to those that they stand beside."""
    return rows.assign(
        experiment=rows.experiment.str.replace("_(bandwidth|beyond)$", "", regex=True)
    )


def overrides(point: Point) -> dict[str, Any]:
    """E.g. num_models: 16 for workload.dataset.parameters.num_models=16."""
    names = {key: re.split(r"[./]", key.partition("@")[0])[-1] for key in point.overrides}
    return {names[key]: number(value) for key, value in point.overrides.items()}


def _numbers(path: Path) -> dict[str, Any]:
    summary = json.loads((path / "summary.json").read_text())
    manifest = json.loads((path / "manifest.json").read_text())
    kinds = set(synthetic_kinds(manifest["dataset"]))
    return {
        "system": manifest["choices"]["system"],
        "engine": manifest["engine_name"],
        "hardware": manifest["hardware"]["name"],
        "synthetic": bool(kinds - {Synthetic.BY_AUTHORS, Synthetic.MODELS_DRAWN}),  # not theirs
        "num_requests": summary["num_requests"],
        "num_models": len(summary["models"]),
        "token": summary["slo_attainment"]["token"],
        "time": summary["slo_attainment"]["time"],
        "request": summary["slo_attainment"]["request"],
        "ttft_mean_s": summary["ttft_s"]["mean"],
        "valid": summary["verdict"]["status"] == "VALID",
    }


def number(text: str) -> Any:
    try:
        return float(text) if "." in text or "e" in text else int(text)
    except ValueError:
        return text


def events(path: Path, *kinds: str) -> pd.DataFrame:
    """The run's device events of `kinds`, their fields as columns."""
    found = pq.read_table(path / "events.parquet", filters=[("kind", "in", kinds)])
    rows = found.drop_columns(["fields"]).to_pandas()
    fields = pd.DataFrame([json.loads(text) for text in found["fields"].to_pylist()])
    both: pd.DataFrame = pd.concat([rows, fields], axis=1)
    return both


def spans(path: Path, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """When the run's device events of `kind` begin and end, of which there may be many."""
    columns = ["start_s", "end_s"]
    found = pq.read_table(path / "events.parquet", columns=columns, filters=[("kind", "=", kind)])
    return found["start_s"].to_numpy(), found["end_s"].to_numpy()


def requests(path: Path) -> pd.DataFrame:
    columns = ["request_id", "model", "arrival_s", "status", "output_tokens", "token_times_s"]
    found: pd.DataFrame = pq.read_table(path / "requests.parquet", columns=columns).to_pandas()
    return found


def of_seeds(rows: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """Mean, lowest and highest of `y` over the runs at each `x`."""
    grouped = rows.dropna(subset=[y]).groupby(x)[y]
    return grouped.agg(["mean", "min", "max"]).reset_index()


def frame(axes: Axes, title: str, x_label: str) -> None:
    """Axes of SLO attainment, with the 90 % line."""
    axes.set(title=title, xlabel=x_label, ylabel="SLO attainment (%)", ylim=(0, 104))
    axes.axhline(100 * GOOD, color="0.4", lw=0.8, ls="--")


def curve(axes: Axes, rows: pd.DataFrame, x: str, y: str, system: str, **line: Any) -> None:
    """`y` (a share) in per cent over `x`, its range over seeds shaded; a thin vertical line where
    its mean falls below GOOD."""
    label, colour, marker, style = SYSTEMS[system]
    shown = of_seeds(rows, x, y)
    if shown.empty:
        return
    drawn = {"color": colour, "marker": marker, "ls": style, "label": label, "ms": 4} | line
    colour = drawn["color"]
    end = crossing(rows, x, y)
    if np.isfinite(end) and not isinstance(end, Beyond):
        axes.axvline(end, color=colour, lw=0.7, ls=drawn["ls"])
    axes.plot(shown[x], 100 * shown["mean"], **drawn)
    axes.fill_between(shown[x], 100 * shown["min"], 100 * shown["max"], color=colour, alpha=0.15)


def publish(made: Figure, rows: pd.DataFrame, folder: Path, name: str) -> list[Path]:
    """Writes `folder`/`name`.csv, .pdf and .png."""
    csv = folder / f"{name}.csv"
    write_text(csv, rows.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
    return [csv, save(made, folder / f"{name}.pdf", keep=True), save(made, folder / f"{name}.png")]


def architectures(path: Path) -> dict[str, str]:
    """The model behind each name in a run's schedule, e.g. llama2-13b."""
    config = yaml.safe_load((path / "config.yaml").read_text())["model_set"]
    names = dict.fromkeys(pq.read_table(path / "schedule.parquet")["model"].to_pylist())
    cycle = config["cycle"]
    specs = [config["specs"][cycle[i % len(cycle)]]["name"] for i in range(len(names))]
    return dict(zip(names, specs, strict=True))


def gantt(axes: Axes, found: pd.DataFrame, colours: Mapping[str, Any]) -> None:
    """A row per instance: batches by model, prefills hatched, and switches between them."""
    instances = sorted(found.instance.unique())
    for row, instance in enumerate(instances):
        of_instance = found[found.instance == instance]
        switches = of_instance[of_instance.kind == "switch"]
        axes.broken_barh(_spans(switches), (row - 0.2, 0.4), color="0.55", lw=0)
        batches = of_instance[of_instance.kind == "run"]
        for (model, phase), runs in batches.groupby(["model", "phase"]):
            prefill = phase == "prefill"
            axes.broken_barh(
                _spans(runs), (row - 0.4, 0.8), facecolor=colours[model], lw=0.3,
                edgecolor="k" if prefill else "white", hatch="/////" if prefill else None,
            )  # fmt: skip
    axes.set_yticks(range(len(instances)), instances)
    axes.set_ylim(len(instances) - 0.5, -0.5)
    axes.grid(False, axis="y")


def _spans(rows: pd.DataFrame) -> list[tuple[float, float]]:
    return list(zip(rows.start_s, rows.end_s - rows.start_s, strict=True))
