"""The parity report as a page: what was compared, which targets are met, and every error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.records.numbers import seconds
from harness.schedule import shown


def markdown(found: Mapping[str, Any]) -> str:
    """parity.md from the content of parity.json."""
    machine = found["machine"]
    lines = [
        "# How wrong the simulator is",
        "",
        f"engine=sim against engine={found['engine']}, model {found['model']}, "
        f"{machine['cpu']} with {machine['num_cores']} cores, {found['date_utc']}. "
        f"{found['num_requests']} requests a point, identical schedules, held out from "
        f"calibration; lengths are {found['setting']['length_scale']:g} times the traces'. "
        "Errors are (simulated − real) / real, "
        f"of the medians over {found['num_passes']} passes, each simulated by its calibration, "
        "which parity.json has.",
        "",
        f"Knees (requests/s): {_knees(found['knees_per_s'])}."
        + (" The real runs are an earlier report's." if found["real_runs_kept"] else ""),
        "",
        "`times`: what a real run's iterations with decodes took over what calibration has for "
        "them, in each pass: the machine's speed drifts, and calibration may be off for such "
        "iterations. Beside each target stands what is left when a point is simulated at that "
        "speed, which is no prediction; the verdict is on simulations as calibrated.",
        "",
        "`single pass`: the worst of any point in any one pass, which medians over passes hide. "
        "`spread`: of the real runs of one point among themselves, the most of any point.",
        "",
        "| target up to 0.9 of the knee | limit | worst | median size | met | single pass "
        "| worst at its speed | median size at its speed | spread |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_target(row) for row in found["targets"]),
        "",
    ]
    if found["invalid"]:
        lines += ["Real runs that judged themselves INVALID, and are left out:", ""]
        lines += [f"- {reason}" for reason in found["invalid"]] + [""]
    for workload in dict.fromkeys(row["workload"] for row in found["rows"]):
        rows, passes = (
            [row for row in found[key] if row["workload"] == workload] for key in ("rows", "passes")
        )
        lines += _workload(labelled(workload, found["synthetic"]), rows, passes)
    return "\n".join(lines)


def labelled(workload: str, synthetic: Mapping[str, Sequence[str]] | Sequence[str]) -> str:
    """`workload` with what of it is no recording, e.g. "burstgpt (ARRIVALS DRAWN)". Reports from
    before the kinds were told apart have the workloads' names alone."""
    if isinstance(synthetic, Mapping):
        kinds = shown(synthetic.get(workload, []))
    else:
        kinds = "SYNTHETIC" if workload in synthetic else ""
    return f"{workload} ({kinds})" if kinds else workload


def _knees(knees: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {rate:.1f}" for name, rate in knees.items())


def _target(row: Mapping[str, Any]) -> str:
    share = row["quantity"] == "slo_attainment"
    name = f"{row['quantity'].removesuffix('_s')} {row['statistic']}"
    limit, median, known, spread = (
        _error(row[key], share, signed=False)
        for key in ("limit", "median", "median_at_their_speed", "spread")
    )
    worst, single, worst_known = (
        _error(row[key], share, signed=True)
        for key in ("worst", "worst_pass", "worst_at_their_speed")
    )
    met = "yes" if row["met"] else "no"
    cells = name, limit, worst, median, met, single, worst_known, known, spread
    return f"| {' | '.join(cells)} |"


def _workload(
    name: str, rows: Sequence[Mapping[str, Any]], passes: Sequence[Mapping[str, Any]]
) -> list[str]:
    """A table of the workload: quantities down, loads across, real → simulated (error)."""
    loads = list(dict.fromkeys(row["load"] for row in rows))
    quantities = list(dict.fromkeys((row["quantity"], row["statistic"]) for row in rows))
    by_key = {(row["quantity"], row["statistic"], row["load"]): row for row in rows}
    lines = [f"## {name}", "", "| | " + " | ".join(f"{load:g}" for load in loads) + " |"]
    lines.append("|---" * (len(loads) + 1) + "|")
    lines.append(f"| times | {' | '.join(_times(passes, load) for load in loads)} |")
    for quantity, statistic in quantities:
        cells = [_cell(by_key[quantity, statistic, load]) for load in loads]
        label = f"{quantity.removesuffix('_s')} {statistic}" if statistic else quantity
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return [*lines, ""]


def _times(passes: Sequence[Mapping[str, Any]], load: float) -> str:
    """What iterations took in each pass, over what calibration found."""
    found = {row["pass"]: row["time_scale"] for row in passes if row["load"] == load}
    return ", ".join("?" if times is None else f"{times:.2f}" for times in found.values())


def _cell(row: Mapping[str, Any]) -> str:
    if row["error"] is None:
        return "—"
    share = row["quantity"] == "slo_attainment"
    show = seconds if row["quantity"].endswith("_s") and row["statistic"] else "{:.3g}".format
    both = f"{show(row['real'])} → {show(row['simulated'])}"
    return f"{both} ({_error(row['error'], share, signed=True)})"


def _error(value: float | None, share: bool, *, signed: bool) -> str:
    if value is None:
        return "—"
    sign = "+" if signed else ""
    return f"{value:{sign}.3f}" if share else f"{value:{sign}.1f} %"
