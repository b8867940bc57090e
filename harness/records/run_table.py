"""Tables of runs, and what stands below them: which engine, hardware and seed their numbers came
from, how wrong the simulator is, and what of the workload was not recorded but drawn, repeated or
generated. Shows what summary.json holds and computes nothing. That of one run: `end_table.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from harness.records.numbers import number, seconds
from harness.records.percentiles import min_samples
from harness.records.simulator_band import bands, measured_on, regime
from harness.records.simulator_error import (
    NOT_MEASURED_POOLED,
    not_measured_elastic,
    simulator_error,
)
from harness.schedule import shown

# Of iteration times, the surest first.
SOURCES = ("measured", "device law", "served batches", "kernel profiles", "datasheet")
LATENCIES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "tbt_s": "TBT", "e2e_s": "E2E"}
COLUMNS = {"mean": "mean", "p50": "P50", "p90": "P90", "p99": "P99", "p99.9": "P99.9"}


def origin(manifest: Mapping[str, Any]) -> str:
    """Tells in one line where a run's numbers came from: for captions of tables and of figures."""
    hardware = manifest["hardware"]
    profile = f"{hardware['name']}: {hardware['num_devices']} x {hardware['device']}"
    # A real engine says what it ran on; the profile is what was asked for.
    devices = manifest["engine"].get("devices")
    parts = [
        "SIMULATED" if manifest["simulated"] else f"engine {manifest['engine_name']}",
        f"{len(devices)} x {', '.join(dict.fromkeys(devices))}" if devices else profile,
        seeds(manifest),
    ]
    if in_flight := manifest.get("closed_loop"):
        parts.append(f"closed loop, {in_flight} in flight")
    if sessions := manifest.get("sessions"):
        parts.append(f"closed loop within {sessions} sessions")
    if kinds := manifest["dataset"]["synthetic"]:
        parts.append(shown(kinds))
    return " · ".join(parts)


def simulator(manifests: Sequence[Mapping[str, Any]]) -> list[str]:
    """What to say of the simulator below numbers of these runs: how wrong it is on each device, as
    published now, and what the iteration times there rest on. Nothing where no run was
    simulated."""
    models: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    profiles: defaultdict[tuple[str, str, str | None], set[str]] = defaultdict(set)
    unmeasured: set[str] = set()
    for manifest in (manifest for manifest in manifests if manifest["simulated"]):
        hardware, engine = manifest["hardware"], manifest["engine"]
        sources = engine.get("step_times", {})
        for model, source in sources.items():
            models[hardware["device"]][source].add(model)
        if engine.get("elastic", False):
            unmeasured.add(not_measured_elastic())
        elif "pool" in engine:
            unmeasured.add(NOT_MEASURED_POOLED)
        else:
            known_as = hardware["device"], hardware["name"], engine.get("profile")
            profiles[known_as].update(sources.values())
    times = [
        f"{device} {source} ({', '.join(sorted(names))})"
        for device, by_source in models.items()
        for source, names in sorted(by_source.items(), key=lambda item: SOURCES.index(item[0]))
    ]
    said = [
        simulator_error(device, profile, sources, engine)
        for (device, profile, engine), sources in profiles.items()
    ]
    said = list(dict.fromkeys([*said, *sorted(unmeasured)]))
    return [*said, f"iteration times: {'; '.join(times)}"] if times else said


def band_line(manifest: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """Where a real engine's numbers may lie, by parity; or that parity has no point for this."""
    found, load = bands(manifest, summary), regime(summary)
    if not found:
        return f"none: no five parity points of such a run, {load}"
    told = []
    for key, column in product(("ttft_s", "tpot_s"), ("mean", "p50", "p99")):
        value = summary[key][column]
        if value is not None and (band := found.get(f"{key}.{column}")):
            low, high = map(seconds, band.real(value))
            told.append(f"{LATENCIES[key]} {COLUMNS[column]} {low} to {high}")
    tokens = summary["slo_attainment"]["token"]
    if tokens is not None and (band := found.get("slo_attainment.token")):
        low, high = map(share, band.real(tokens))
        told.append(f"tokens within SLO {low} to {high}")
    some = next(iter(found.values()))
    points = f"of {some.num_points} parity points {load}, which cover {some.coverage:.0%}"
    points = f"{points}, on {measured_on(manifest)}"
    return f"on a real engine, by the errors {points}: {', '.join(told)}"


def captions(manifests: Sequence[Mapping[str, Any]]) -> list[str]:
    """What to say below a table of many runs: their origins, and of the simulator."""
    return [*dict.fromkeys(map(origin, manifests)), *simulator(manifests)]


def seeds(manifest: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in manifest["seeds"].items())


def title(manifest: Mapping[str, Any]) -> str:
    """E.g. "vllm x azure_code, tiny-llama", or with a model set's models "…, model set aegaeon"."""
    choices = manifest["choices"]
    model_set = choices.get("model_set", "one")
    models = choices["model"] if model_set == "one" else f"model set {model_set}"
    return f"{choices['system']} x {choices['workload']}, {models}"


def numbers_table(first: str, others: Iterable[str], **options: Any) -> Table:
    """A table without rows: `first` and the `others`, of numbers, are its columns."""
    table = Table(first, box=SIMPLE_HEAD, **options)
    for name in others:
        table.add_column(name, justify="right")
    return table


def runs_table(
    title: str, heading: str, names: Iterable[str], *, min_width: int, caption: str | None = None
) -> Table:
    """A table without rows: as narrow as a terminal may be, what sets runs apart on several
    lines."""
    table = Table(
        title=title, caption=caption, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    table.add_column(escape(heading), overflow="fold", min_width=min_width)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def sweep_table(
    rows: Sequence[tuple[str, Mapping[str, Any]]], heading: str, captions: Sequence[str]
) -> Table:
    """One row per run of a sweep: (label, summary). SLO is the share of requests within it.
    `captions`: what `captions` says of the runs."""
    names = ("TTFT", "P99", "TPOT", "tok/s", "good/s", "SLO", "verdict")
    title = f"sweep of {len(rows)} runs: means, and TTFT at P99"
    said = escape("\n".join(captions))
    table = runs_table(title, heading, names, min_width=15, caption=said)
    for label, summary in rows:
        table.add_row(
            escape(label),
            cell(summary["ttft_s"], "mean"),
            cell(summary["ttft_s"], "p99"),
            cell(summary["tpot_s"], "mean"),
            number(summary["output_throughput_tokens_per_s"]),
            number(summary["goodput_per_s"]),
            f"{summary['slo_attainment']['request']:.1%}",
            summary["verdict"]["status"],
        )
    return table


def cell(row: Mapping[str, float | None], column: str) -> str:
    value = row.get(column)
    return absent(row, column) if value is None else seconds(value)


def ends_of(interval: Sequence[float | None] | None, show: Callable[[float], str] = seconds) -> str:
    """An interval; "> 0.71 s" where the sample does not reach to its higher end."""
    low, high = interval or (None, None)
    if low is None or high is None:
        return "" if low is None else f"> {show(low)}"
    return f"{show(low)} to {show(high)}"


def absent(row: Mapping[str, float | None], column: str) -> str:
    """Why a latency has no value: there are no samples, or fewer than its percentile needs; or an
    earlier version did not compute it."""
    if not (count := row["num_samples"]):
        return "none"
    least = min_samples(float(column[1:])) if column[:1] == "p" else 1  # mean
    return f"n<{least}" if count < least else "not computed"


def share(value: float | None) -> str:
    return "none" if value is None else f"{value:.1%}"
