"""`python -m harness fidelity gpu`: simulates runs of real vLLM on GPUs that others published.

Tells the error of the simulator by point and metric, beside the errors of other simulators of the
same runs.

Writes points.csv (loads), requests.csv (runs of which every request is known), others.csv (other
simulators' predictions), errors.json (by GPU and profile, for captions), gpu.md and gpu.png.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from harness.calibrate import zoo
from harness.calibrate.profiles import read_table
from harness.calibrate.published import folder, served_points
from harness.calibrate.published_fit import FITTED_SETS
from harness.calibrate.tables import save_csv
from harness.configuration.command_line import parser
from harness.fidelity.arguments import PUBLISHED
from harness.fidelity.gpu_page import SAME, page
from harness.fidelity.replay import COLUMNS, FOUND, PROFILE, Load, engine_config, simulated
from harness.fidelity.requests import METRICS, RUNS, Run, curves, replay_run
from harness.files import make_folder, write_json, write_text
from harness.records.simulator_band import BELOW, SATURATED

# Busy: decodes and prompts at once, by Little's law, over max_num_seqs.
LIGHT, KNEE = 0.3, 0.8


def main(words: Sequence[str], console: Console) -> None:
    made = parser("fidelity gpu", __doc__)
    data = "the published runs; default: $HARNESS_DATA_DIR/gpu_e2e"
    made.add_argument("--published", type=Path, metavar="DIR", help=data)
    out = PUBLISHED / "gpu"
    made.add_argument("--out", type=Path, default=out, metavar="DIR", help="%(default)s")
    chosen = made.parse_args(words)
    console.print(f"{report(chosen.published, chosen.out)}", soft_wrap=True)


def report(published: Path | None, out: Path) -> Path:
    """Simulates everything and writes the report; returns the page's path."""
    points = served_points(published)  # read first: that it is there is known before an hour
    others = predictions(published)
    make_folder(out)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        loads = [load_of(row) for row in points[[*COLUMNS, "stage"]].to_dict("records")]
        order = sorted(range(len(loads)), key=lambda i: -loads[i].num_requests)
        shown = points.capacity_per_s.notna()  # by a stage that is beyond it
        runs = [pool.submit(replay_run, run, PROFILE, published) for run in RUNS]
        found = dict(
            zip(order, pool.map(_simulated, [(loads[i], shown[i]) for i in order]), strict=True)
        )
        replayed = {run: future.result() for run, future in zip(RUNS, runs, strict=True)}
    rows = compared(points, [found[i] for i in range(len(loads))])
    single = pd.DataFrame([requests_row(run, table) for run, table in replayed.items()])
    lines = {run.name: curves(run, table, published) for run, table in replayed.items()}
    save_csv(rows, out / "points.csv")
    save_csv(single, out / "requests.csv")
    save_csv(others, out / "others.csv")
    save_csv(pd.concat(lines, names=["run"]).reset_index("run"), out / "curves.csv")
    write_json(out / "errors.json", by_device(rows, single))
    write_text(out / "gpu.md", page(rows, single, others, lines))
    import_module("plots.fidelity").draw_gpu(out)
    return out / "gpu.md"


def _simulated(what: tuple[Load, bool]) -> dict[str, Any]:
    load, with_capacity = what
    return simulated(load, engine_config(PROFILE), {} if with_capacity else None)


def load_of(row: dict[Any, Any]) -> Load:
    """A stage after a run's first finds the prompts that were sent before it in the cache."""
    most = row["max_outstanding"]
    values = {str(name): row[name] for name in COLUMNS}
    values["max_outstanding"] = float("inf") if np.isnan(most) else float(most)
    return Load(**values, warm=row["stage"] > 0)


def compared(points: pd.DataFrame, found: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Each point with what was simulated (sim_) and its signed error in percent (_error_pct)."""
    simulated = pd.DataFrame(list(found)).reindex(columns=[*FOUND, "reason"])
    rows = points.assign(
        held_out=~points.set.isin(FITTED_SETS) | points.capacity_per_s.notna(),
        regime=[regime(row) for row in points.to_dict("records")],
        reason=simulated.reason,
    )
    for name in FOUND:
        rows[f"sim_{name}"] = simulated[name].to_numpy()
        if name in points:
            rows[f"{name}_error_pct"] = 100 * (rows[f"sim_{name}"] / points[name] - 1)
    return rows


def regime(row: dict[Any, Any]) -> str:
    """The regime of a point, by how many of max_num_seqs run at once, as Little's law says of the
    measured times."""
    if not np.isnan(row["capacity_per_s"]):
        return "saturated"
    busy = row["rate_per_s"] * row["e2e_mean_s"] / row["max_num_seqs"]
    return "light" if busy < LIGHT else "loaded" if busy < KNEE else "near the knee"


def requests_row(run: Run, table: pd.DataFrame) -> dict[str, Any]:
    """Means of a run, errors of the means, and of the requests one by one."""
    row: dict[str, Any] = {
        "run": run.name, "model": run.model, "gpu": run.gpu, "tp": run.tp,
        "regime": "KV-bound" if run.kv_blocks else "saturated", "requests": len(table),
    }  # fmt: skip
    for metric in METRICS:
        measured = table[metric].mean()
        row[f"{metric}_mean_s"] = measured
        for who in ("sim", "their"):
            error = 100 * (table[f"{who}_{metric}"] / table[metric] - 1)
            mean = table[f"{who}_{metric}"].mean()
            row[f"{who}_{metric}_mean_s"] = mean
            row[f"{who}_{metric}_error_pct"] = 100 * (mean / measured - 1)
            row[f"{who}_{metric}_each_median_pct"] = error.abs().median()
            row[f"{who}_{metric}_each_p90_pct"] = error.abs().quantile(0.9)
    return row


def predictions(published: Path | None) -> pd.DataFrame:
    """What other simulators said of BLIS's runs, by point and metric."""
    path = folder(published, "blis_vllm") / "predictions_of_others.csv"
    names = ["set", "simulator", "run", "metric"]
    table = read_table(path, names, ["stage", "measured", "predicted", "signed_error_pct"])
    used = table.metric.isin(SAME.values()) & table.set.isin(("eval38", "trainval13"))
    return table.loc[used & (table.stage >= 0), [*names, "stage", "signed_error_pct"]]


def by_device(rows: pd.DataFrame, single: pd.DataFrame) -> dict[str, Any]:
    """The error of a GPU under PROFILE, of held-out points, signed and absolute, for captions and
    bands. Keyed by the device, as hardware.device has it, then by profile."""
    metrics, keys = (*METRICS, "capacity"), ["gpu", "regime"]
    columns = [*(f"{metric}_mean_s_error_pct" for metric in METRICS), "capacity_per_s_error_pct"]
    points = rows[rows.held_out].set_index(keys)[columns].set_axis(metrics, axis=1)
    boards = single.set_index(keys)[[f"sim_{metric}_error_pct" for metric in METRICS]]
    both = pd.concat([points, boards.set_axis(METRICS, axis=1)]).reset_index()
    both["regime"] = np.where(both.regime.isin(("saturated", "KV-bound")), SATURATED, BELOW)
    errors = both.melt(keys, var_name="metric", value_name="error").dropna()
    found: dict[str, Any] = {}
    for (gpu, metric), part in errors.groupby(["gpu", "metric"]):
        device = zoo.device(str(gpu)).device
        by_metric = found.setdefault(device, {}).setdefault(PROFILE, {})
        worst = part.error.iloc[part.error.abs().argmax()]
        by_metric[str(metric)] = {
            "points": len(part), "mean_abs_error_pct": round(part.error.abs().mean(), 1),
            "mean_error_pct": round(part.error.mean(), 1), "worst_error_pct": round(worst, 1),
            "errors_pct": {
                str(load): sorted(of_load.error.round(1).tolist())
                for load, of_load in part.groupby("regime")
            },
        }  # fmt: skip
    return found
