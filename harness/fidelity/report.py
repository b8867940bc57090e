"""The parity report as a page: what was compared, which targets are met, and every error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.calibrate.tables import page
from harness.records.numbers import seconds
from harness.schedule import shown


def markdown(found: Mapping[str, Any]) -> str:
    """parity.md from the content of parity.json."""
    workloads = {}
    for workload in dict.fromkeys(row["workload"] for row in found["rows"]):
        rows, passes = (
            [row for row in found[key] if row["workload"] == workload] for key in ("rows", "passes")
        )
        workloads[labelled(workload, found["synthetic"])] = list(_workload(rows, passes))
    template = Path(__file__).with_name("templates") / "parity.md"
    targets = [_target(row) for row in found["targets"]]
    return page(template, found=found, targets=targets, workloads=workloads)


def labelled(workload: str, synthetic: Mapping[str, Sequence[str]] | Sequence[str]) -> str:
    """`workload` with what of it is no recording, e.g. "burstgpt (ARRIVALS DRAWN)". Reports from
    before the kinds were told apart have the workloads' names alone."""
    if isinstance(synthetic, Mapping):
        kinds = shown(synthetic.get(workload, []))
    else:
        kinds = "SYNTHETIC" if workload in synthetic else ""
    return f"{workload} ({kinds})" if kinds else workload


def _target(row: Mapping[str, Any]) -> list[str]:
    def cell(key: str, sign: str = "") -> str:
        return _error(row[key], row["quantity"], sign)

    return [
        f"{row['quantity'].removesuffix('_s')} {row['statistic']}",
        cell("limit"),
        cell("worst", "+"),
        cell("median"),
        "yes" if row["met"] else "no",
        cell("worst_pass", "+"),
        cell("worst_at_their_speed", "+"),
        cell("median_at_their_speed"),
        cell("spread"),
    ]


def _workload(
    rows: Sequence[Mapping[str, Any]], passes: Sequence[Mapping[str, Any]]
) -> Iterator[list[str]]:
    """A table of a workload: quantities down, loads across, real → simulated (error)."""
    loads = list(dict.fromkeys(row["load"] for row in rows))
    yield ["", *(f"{load:g}" for load in loads)]
    yield ["times", *(_times(passes, load) for load in loads)]
    by_key = {(row["quantity"], row["statistic"], row["load"]): row for row in rows}
    for quantity, statistic in dict.fromkeys(key[:2] for key in by_key):
        label = f"{quantity.removesuffix('_s')} {statistic}" if statistic else quantity
        yield [label, *(_cell(by_key[quantity, statistic, load]) for load in loads)]


def _times(passes: Sequence[Mapping[str, Any]], load: float) -> str:
    """What iterations took in each pass, over what calibration found."""
    found = {row["pass"]: row["time_scale"] for row in passes if row["load"] == load}
    return ", ".join("?" if times is None else f"{times:.2f}" for times in found.values())


def _cell(row: Mapping[str, Any]) -> str:
    if row["error"] is None:
        return "—"
    show = seconds if row["quantity"].endswith("_s") and row["statistic"] else "{:.3g}".format
    both = f"{show(row['real'])} → {show(row['simulated'])}"
    return f"{both} ({_error(row['error'], row['quantity'], '+')})"


def _error(value: float | None, quantity: str, sign: str) -> str:
    if value is None:
        return "—"
    return f"{value:{sign}.3f}" if quantity == "slo_attainment" else f"{value:{sign}.1f} %"
