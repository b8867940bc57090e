"""What a run says when it ends: a table of its latencies, rates and attainment, and its verdict.

Every table says which engine, hardware and seed its numbers came from, and what of the workload was
not recorded but drawn, repeated or generated. Shows what summary.json holds and computes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from harness.records.numbers import number, seconds
from harness.records.percentiles import min_samples
from harness.records.simulator_band import bands, regime
from harness.records.simulator_error import NOT_MEASURED_ELASTIC, simulator_error
from harness.schedule import shown, synthetic_kinds

# Of iteration times, the surest first.
SOURCES = ("measured", "device law", "served batches", "kernel profiles", "datasheet")
LATENCIES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "tbt_s": "TBT", "e2e_s": "E2E"}
MAX_MODELS = 6  # shown by name
SHOWN_DIFFERENCE = 0.05  # of a number in the steady state from the whole run's
COLUMNS = {"mean": "mean", "p50": "P50", "p90": "P90", "p99": "P99"}


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
    if kinds := synthetic_kinds(manifest["dataset"]):
        parts.append(shown(kinds))
    return " · ".join(parts)


def simulator(manifests: Sequence[Mapping[str, Any]]) -> list[str]:
    """What to say of the simulator below numbers of these runs: how wrong it is on each device, as
    published now, and what the iteration times there rest on. Nothing where no run was
    simulated."""
    models: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    profiles: defaultdict[tuple[str, str, str | None], set[str]] = defaultdict(set)
    elastic = False
    for manifest in (manifest for manifest in manifests if manifest["simulated"]):
        hardware, engine = manifest["hardware"], manifest["engine"]
        sources = engine.get("step_times", {})
        for model, source in sources.items():
            models[hardware["device"]][source].add(model)
        if engine.get("elastic", False):
            elastic = True
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
    said = list(dict.fromkeys([*said, *([NOT_MEASURED_ELASTIC] if elastic else [])]))
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


def end_table(summary: Mapping[str, Any], manifest: Mapping[str, Any]) -> Group:
    """The table at the end of a run, for a rich console."""
    latency = numbers_table("latency", COLUMNS.values(), title=escape(title(manifest)))
    for key, name in LATENCIES.items():
        latency.add_row(name, *(cell(summary[key], column) for column in COLUMNS))
        if within := summary.get("intervals_95", {}).get(key):
            ends = (ends_of(within.get(column)) for column in COLUMNS)
            latency.add_row("  95 %", *ends, style="dim")
    by_model = [_models(summary["models"])] if len(summary["models"]) > 1 else []
    return Group(latency, *by_model, _totals(summary, manifest), *_warnings(summary))


def numbers_table(first: str, others: Iterable[str], **options: Any) -> Table:
    """A table without rows: `first` and the `others`, of numbers, are its columns."""
    table = Table(first, box=SIMPLE_HEAD, **options)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _models(models: Mapping[str, Mapping[str, Any]]) -> Table:
    """SLO attainment of the most requested models."""
    table = numbers_table("SLO attainment by model", ("requests", "token", "time", "request"))
    for name, row in list(models.items())[:MAX_MODELS]:
        shares = (share(row["slo_attainment"][kind]) for kind in ("token", "time", "request"))
        table.add_row(escape(name), str(row["num_requests"]), *shares)
    if len(models) > MAX_MODELS:
        table.add_row(f"… {len(models) - MAX_MODELS} more")
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
    value = row[column]
    return absent(row, column) if value is None else seconds(value)


def ends_of(interval: Sequence[float | None] | None) -> str:
    """An interval of seconds; "> 0.71 s" where the sample does not reach to its higher end."""
    low, high = interval or (None, None)
    if low is None or high is None:
        return "" if low is None else f"> {seconds(low)}"
    return f"{seconds(low)} to {seconds(high)}"


def absent(row: Mapping[str, float | None], column: str) -> str:
    """Why a latency has no value: there are no samples, or fewer than its percentile needs."""
    if not row["num_samples"]:
        return "none"
    return f"n<{min_samples(float(column.removeprefix('p')))}"


def share(value: float | None) -> str:
    return "none" if value is None else f"{value:.1%}"


def _totals(summary: Mapping[str, Any], manifest: Mapping[str, Any]) -> Table:
    slo, attainment, verdict = summary["slo"], summary["slo_attainment"], summary["verdict"]
    grid = Table.grid(padding=(0, 2))
    rates = [summary[f"{name}_per_s"] for name in ("request_throughput", "goodput")]
    shares = [f"{kind} {share(attainment[kind])}" for kind in ("token", "time", "request")]
    tokens_per_s = number(summary["output_throughput_tokens_per_s"])
    limits = f"TTFT {seconds(slo['ttft_s'])}, TBT {seconds(slo['tbt_s'])}"
    grid.add_row(
        "requests",
        f"{summary['num_completed']} of {summary['num_requests']} completed, "
        f"{summary['num_failed']} failed ({summary['num_timeouts']} timed out)",
    )
    grid.add_row("throughput", f"{number(rates[0])} requests/s, {tokens_per_s} tokens/s")
    grid.add_row("SLO attainment", ", ".join(shares) + _within(summary))
    grid.add_row("goodput", f"{number(rates[1])} requests/s within SLO {slo['name']}: {limits}")
    for name, what in other_lines(summary):
        grid.add_row(name, what)
    grid.add_row("workload", escape("; ".join(workload_lines(manifest["dataset"]))))
    grid.add_row("from", origin(manifest))
    if said := simulator([manifest]):
        grid.add_row("simulator", escape("; ".join(said).removeprefix("simulator ")))
        grid.add_row("its band", escape(band_line(manifest, summary)))
    style = "green" if verdict["status"] == "VALID" else "bold red"
    grid.add_row("verdict", Text(verdict["status"], style=style))
    return grid


def _within(summary: Mapping[str, Any]) -> str:
    """The interval of the attainment by request; nothing in summaries that have none."""
    if "intervals_95" not in summary:
        return ""
    low, high = summary["intervals_95"]["slo_attainment"]["request"]
    return f" (95 %: {low:.1%} to {high:.1%})"


def workload_lines(dataset: Mapping[str, Any]) -> list[str]:
    """The dataset, which file of it was read, and what was done to its rows."""
    file = dataset.get("file")  # runs from before it was recorded have none
    named = f"{dataset['source']} ({file})" if file else dataset["source"]
    return [named, *dataset["steps"]]


def other_lines(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, what there is to say) beside latencies, rates and attainment."""
    return [
        *closed_loop_lines(summary),
        *session_lines(summary),
        *smoothness_lines(summary),
        *steady_lines(summary),
        *device_lines(summary),
    ]


def closed_loop_lines(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if kept := summary.get("closed_loop"):
        mean = kept["mean_in_flight"]
        found = kept["reason"] if mean is None else f"{mean:.2f} on average"
        yield (
            "closed loop",
            f"{kept['concurrency']} requests in flight ({found}); each is sent when another has "
            "ended, and the schedule's arrival times are not used",
        )


def session_lines(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """First and later turns apart, and what a prefix cache had of them."""
    if not (sessions := summary.get("sessions")):
        return
    yield (
        "sessions",
        f"{sessions['num_sessions']}, a closed loop within each: a turn is sent when the answer "
        "before has ended and its user has thought",
    )
    for kind in ("first", "later"):
        turns = sessions[kind]
        if turns["num_requests"]:
            ttft = (f"{name} {cell(turns['ttft_s'], key)}" for key, name in COLUMNS.items())
            yield (
                f"{kind} turns",
                f"{turns['num_requests']}: TTFT {', '.join(ttft)}{_cached(turns)}",
            )


def _cached(turns: Mapping[str, Any]) -> str:
    """Nothing where nobody said what was cached."""
    cached, prompts = turns["cached_tokens"], turns["prompt_tokens"]
    return (
        "" if cached is None or not prompts else f"; {cached / prompts:.1%} of the prompts cached"
    )


def smoothness_lines(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The fluidity index where a request was not fluid, QoE where one was not good, and stalls
    where there were any."""
    if (fluidity := summary.get("fluidity_index")) and fluidity["fluid_share"] < 1:
        yield (
            "fluidity index",
            f"mean {fluidity['mean']:.3f}; {share(fluidity['fluid_share'])} of the requests have "
            "at least 0.9",
        )
    if (qoe := summary.get("qoe")) and qoe["good_share"] < 1:
        good = share(qoe["good_share"])
        yield "QoE", f"mean {qoe['mean']:.3f}; {good} of the requests have at least 0.9"
    if (stalls := summary.get("stalls")) and stalls["count"]:
        yield (
            "stalls",
            f"{stalls['count']:,} gaps over {seconds(stalls['threshold_s'])} in "
            f"{stalls['num_requests']:,} requests: {seconds(stalls['seconds'])} in all, the "
            f"longest {seconds(stalls['longest_s'])}",
        )


def steady_lines(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The numbers from the end of the warm-up to the last arrival, where one differs from the whole
    run's by SHOWN_DIFFERENCE; nothing of runs without a steady state."""
    steady = summary.get("steady", {})
    if steady.get("from_s") is None:
        return
    rates = ("request_throughput_per_s", "output_throughput_tokens_per_s", "goodput_per_s")
    pairs = [(steady[name], summary[name]) for name in rates]
    pairs += [(steady[name]["mean"], summary[name]["mean"]) for name in LATENCIES]
    if any(_differ(one, other) for one, other in pairs):
        means = [f"{name} {cell(steady[key], 'mean')}" for key, name in LATENCIES.items()]
        completed, tokens, good = (number(steady[name]) for name in rates)
        yield (
            "steady state",
            f"from {seconds(steady['from_s'])} to the last arrival at {seconds(steady['to_s'])}: "
            f"mean {', '.join(means)}; {completed} requests/s, "
            f"{tokens} tokens/s; {good} requests/s and "
            f"{share(steady['slo_attainment']['request'])} of the requests within SLO",
        )


def _differ(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is not other
    return abs(one - other) > SHOWN_DIFFERENCE * abs(other)


def device_lines(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What there is to say of instances that models share."""
    if switches := summary.get("switches"):
        latency = ", ".join(
            f"{name} {cell(switches['latency_s'], key)}" for key, name in COLUMNS.items()
        )
        hidden = f"{switches['hidden_share']:.0%} of the loads hidden by prefetching"
        yield "switches", f"{switches['count']:,}; {latency}; {hidden}"
    if busy := summary.get("busy_share"):
        yield "busy", f"{busy['mean']:.1%} of the time, mean of {len(busy['instances'])} instances"
    if plugin := summary.get("plugin"):
        counts = ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in plugin.items())
        yield "plug-in", counts
    for purpose, moved in summary.get("kv_moves", {}).items():
        size = f"{moved['bytes'] / 1e6:,.1f} MB of {moved['requests']:,} requests"
        yield purpose, f"{size} in {moved['copies']:,} copies, {moved['seconds']:.1f} s"
    if leases := summary.get("lease_seconds"):
        mean = leases["byte_seconds"] / leases["seconds"] / 1e6 if leases["seconds"] else 0.0
        yield "leases", f"{leases['leases']:,}, of {mean:,.1f} MB in the mean over their time"


def _warnings(summary: Mapping[str, Any]) -> list[Text]:
    verdict = summary["verdict"]
    invalid = [Text(f"{verdict['status']}: {reason}", "red") for reason in verdict["reasons"]]
    notes = [Text(note, "yellow") for note in verdict.get("notes", [])]
    errors = [Text(f"{n} x {text}", "yellow") for text, n in summary["errors"].items()]
    missing = summary["num_requests"] - summary["ttft_s"]["num_samples"]
    if missing:
        told = f"{missing} requests had no first token: the latencies above leave them out"
        errors.append(Text(told, "yellow"))
    return invalid + notes + errors
