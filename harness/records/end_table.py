"""What a run says when it ends: a table of its latencies, rates and attainment, what is peculiar to
it, and its verdict. Shows what summary.json holds and computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from harness.records.numbers import number, seconds
from harness.records.run_table import (
    COLUMNS,
    LATENCIES,
    band_line,
    cell,
    ends_of,
    numbers_table,
    origin,
    runs_table,
    share,
    simulator,
    title,
)

MAX_MODELS = 6  # shown by name
CERTIFIED = {"ttft_s": "ttft_error_ms", "tbt_s": "tbt_error_ms"}  # in a certificate
ATTAINMENTS = ("token", "time", "request")
MODEL_COLUMNS = ("requests", *LATENCIES.values(), *ATTAINMENTS, "good/s")
SHOWN_DIFFERENCE = 0.05  # of a number in the steady state from the whole run's


def end_table(summary: Mapping[str, Any], manifest: Mapping[str, Any]) -> Group:
    """The table at the end of a run, for a rich console."""
    latency = numbers_table("latency", COLUMNS.values(), title=escape(title(manifest)))
    small = within_error(summary, manifest)
    for key, name in LATENCIES.items():
        row = {column: cell(summary[key], column) for column in COLUMNS}
        row |= {column: f"[dim]{row[column]}[/dim]" for column in small.get(key, ())}
        latency.add_row(name, *row.values())
        if within := summary["intervals_95"].get(key):
            ends = (ends_of(within.get(column)) for column in COLUMNS)
            latency.add_row("  95 %", *ends, style="dim")
    by_model = [_models(summary["models"])] if len(summary["models"]) > 1 else []
    return Group(latency, *by_model, _totals(summary, manifest), *_warnings(summary))


def _models(models: Mapping[str, Mapping[str, Any]]) -> Table:
    """The most requested models."""
    title = "by model: n requests, means, SLO attainment, goodput"
    table = runs_table(title, "model", ("n", *MODEL_COLUMNS[1:]), min_width=10)
    table.padding = 0  # ten columns of whole numbers go into a narrow terminal
    for name, *numbers in islice(model_rows(models), MAX_MODELS):
        table.add_row(escape(name), *numbers)
    if len(models) > MAX_MODELS:
        table.add_row(f"… {len(models) - MAX_MODELS} more")
    return table


def model_rows(models: Mapping[str, Mapping[str, Any]]) -> Iterator[list[str]]:
    """The name and MODEL_COLUMNS of each of several models."""
    for name, row in models.items():
        means = (cell(row[key], "mean") for key in LATENCIES)
        shares = (share(row["slo_attainment"][kind]) for kind in ATTAINMENTS)
        good = number(row["goodput_per_s"])
        yield [name, f"{row['num_requests']:,}", *means, *shares, good]


def slo_words(slo: Mapping[str, Any]) -> str:
    """What a good request meets; and, where that is another thing, a token on time."""
    limits = f"TTFT {seconds(slo['ttft_s'])}, TBT {seconds(slo['tbt_s'])}"
    return f"{slo['goodput']} (ms); tokens within {limits}" if "goodput" in slo else limits


def _totals(summary: Mapping[str, Any], manifest: Mapping[str, Any]) -> Table:
    verdict, grid = summary["verdict"], Table.grid(padding=(0, 2))
    names = ("request_throughput_per_s", "output_throughput_tokens_per_s")
    completed, tokens = (number(summary[name]) for name in names)
    grid.add_row(
        "requests",
        f"{summary['num_completed']} of {summary['num_requests']} completed, "
        f"{summary['num_failed']} failed ({summary['num_timeouts']} timed out)",
    )
    grid.add_row("throughput", f"{completed} requests/s, {tokens} tokens/s")
    for name, what in error_lines(summary, manifest):
        grid.add_row(name, what)
    for name, what in slo_lines(summary):
        grid.add_row(name, escape(what))
    for name, what in other_lines(summary):
        grid.add_row(name, escape(what))
    grid.add_row("workload", escape("; ".join(workload_lines(manifest["dataset"]))))
    grid.add_row("from", origin(manifest))
    if said := simulator([manifest]):
        grid.add_row("simulator", escape("; ".join(said).removeprefix("simulator ")))
        grid.add_row("its band", escape(band_line(manifest, summary)))
    style = "green" if verdict["status"] == "VALID" else "bold red"
    grid.add_row("verdict", Text(verdict["status"], style=style))
    return grid


def within_error(summary: Mapping[str, Any], manifest: Mapping[str, Any]) -> dict[str, list[str]]:
    """By latency, which of COLUMNS are no larger than the client's own error by its certificate.
    None of a run without one, or without sockets."""
    errors = manifest.get("certificate") if "receive_lag_s" in summary else None
    found = {}
    for key, error in CERTIFIED.items():
        limit_s = ((errors or {}).get(error) or 0.0) / 1e3
        values = {column: summary[key].get(column) for column in COLUMNS}
        found[key] = [name for name, value in values.items() if value and value <= limit_s]
    return {key: names for key, names in found.items() if names}


def error_lines(
    summary: Mapping[str, Any], manifest: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """What `within_error` found."""
    told = [
        f"{LATENCIES[key]} {', '.join(COLUMNS[name] for name in names)} "
        f"({manifest['certificate'][CERTIFIED[key]]:g} ms)"
        for key, names in within_error(summary, manifest).items()
    ]
    if told:
        yield "client's error", f"by its certificate, as large as these (grey): {'; '.join(told)}"


def slo_lines(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Attainment, and goodput, each with its interval where there is one."""
    slo, within = summary["slo"], summary.get("intervals_95", {})  # earlier runs have none
    of_shares = within.get("slo_attainment", {})
    shares = (
        f"{kind} {share(summary['slo_attainment'][kind])}{_within(of_shares.get(kind), share)}"
        for kind in ATTAINMENTS
    )
    yield "SLO attainment", ", ".join(shares)
    good = f"{number(summary['goodput_per_s'])} requests/s"
    ends = _within(within.get("goodput_per_s"), number)
    yield "goodput", f"{good}{ends} within SLO {slo['name']}: {slo_words(slo)}"


def _within(interval: Sequence[float] | None, show: Callable[[float], str]) -> str:
    return f" (95 %: {ends_of(interval, show)})" if interval else ""


def workload_lines(dataset: Mapping[str, Any]) -> list[str]:
    """The dataset, which file of it was read, and what was done to its rows."""
    file = f" ({dataset['file']})" if dataset["file"] else ""
    return [f"{dataset['source']}{file}", *dataset["steps"]]


def other_lines(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, what there is to say) beside latencies, rates and attainment."""
    return [
        *closed_loop_lines(summary),
        *session_lines(summary),
        *smoothness_lines(summary),
        *steady_lines(summary),
        *device_lines(summary),
        *fault_lines(summary),
    ]


def fault_lines(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What was done to the run on purpose."""
    told = [
        f"{each['fault']} of {each['planned']} ({each['instance']})"
        + ("" if each["struck"] else f", which did not strike: {each['why_not']}")
        for each in summary.get("faults", ())
    ]
    if told:
        yield "faults", f"on purpose: {'; '.join(told)}"


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
            told = f"{turns['num_requests']}: TTFT {_spread(turns['ttft_s'])}{_cached(turns)}"
            yield f"{kind} turns", told


def _spread(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {cell(row, key)}" for key, name in COLUMNS.items())


def _cached(turns: Mapping[str, Any]) -> str:
    """Nothing where nobody said what was cached."""
    cached, prompts = turns["cached_tokens"], turns["prompt_tokens"]
    known = cached is not None and prompts
    return f"; {cached / prompts:.1%} of the prompts cached" if known else ""


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
        hidden = f"{switches['hidden_share']:.0%} of the loads hidden by prefetching"
        yield "switches", f"{switches['count']:,}; {_spread(switches['latency_s'])}; {hidden}"
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
