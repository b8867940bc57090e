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
        "An error is (simulated − real) / real, of medians over passes. Each target is for the "
        "worst point up to 0.9 of the knee, the saturation load.",
        "",
        "| target up to 0.9 of the knee | limit | worst | median size | met | single pass "
        "| worst at its speed | median size at its speed | spread |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_target(row) for row in found["targets"]),
        "",
        "- `single pass`: the worst error of any point in any one pass. Medians hide it.",
        "- `at its speed`: the error if all simulated times are scaled to the speed of the real "
        "run. This is no prediction, and the verdict does not use it.",
        "- `spread`: how far the real runs of one point differ, at most.",
        "- `times`, in the tables below: the time of a real run's iterations with decodes, divided "
        "by the calibrated time, in each pass. The machine's speed drifts, and the calibration may "
        "be wrong for these iterations.",
        "",
        f"engine=sim against engine={found['engine']}, model {found['model']}, "
        f"{machine['cpu']} with {machine['num_cores']} cores, {found['date_utc']}. "
        f"{found['num_requests']} requests per point, {found['num_passes']} "
        f"{'pass' if found['num_passes'] == 1 else 'passes'}. Both engines run identical "
        "schedules. Calibration did not use these requests. Lengths are "
        f"{found['setting']['length_scale']:g} times those of the traces. parity.json has the "
        "calibration of each pass.",
        "",
        f"Knees (requests/s): {_knees(found['knees_per_s'])}."
        + (" The real runs are from an earlier report." if found["real_runs_kept"] else ""),
        "",
    ]
    if found["invalid"]:
        lines += ["Real runs that are INVALID, and therefore left out:", ""]
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
