"""A run's summary, from its requests table and device events, and its series over time.

The keys of `summarise` are an interface: they are what summary.json holds. Definitions live in
`token_log` (latencies), `attainment` (SLOs), `percentiles` and `verdict`. Pure functions: the
same table and SLO give the same summary, for a run that just ended or for a stored one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from harness.configuration.checks import positive
from harness.errors import UsageError
from harness.records import uncertainty
from harness.records.answers import surplus_share
from harness.records.attainment import Attained
from harness.records.device_events import OF_EVENTS, Event
from harness.records.evidence import MAX_SURPLUS_SHARE, Evidence, rate_per_s
from harness.records.percentiles import distribution
from harness.records.slo import Slo
from harness.records.smoothness import summarise_fluidity, summarise_qoe, summarise_stalls
from harness.records.steady import summarise_steady
from harness.records.token_log import Floats, TokenLog
from harness.records.verdict import judge

MAX_ERRORS = 10  # distinct error texts kept in the summary, most frequent first


@dataclass(kw_only=True, slots=True)
class MetricsConfig:
    stall_s: float  # a longer gap between two tokens of a request is a stall

    def __post_init__(self) -> None:
        positive(self, "metrics", "stall_s")


def summarise(
    table: pa.Table,
    slo: Slo,
    *,
    events: Iterable[Event],
    num_devices: float | None,
    wall_s: float,
    simulated: bool,
    stall_s: float,
) -> dict[str, Any]:
    """The content of summary.json for a table of at least one request.

    events: rows of Recorder.events, of which `summarise_events` makes keys, if there are.
    num_devices: devices that the system held, on average over the run; gpu_seconds is that times
    duration_s, None where it is None: unknown. wall_s: how long the run took on a wall clock.
    simulated: in virtual time, where the verdict holds a run to Little's law. stall_s: see
    MetricsConfig.

    duration_s runs from the first scheduled arrival to the last token of any request, the drain
    included; every rate but the two below is over it, so goodput never exceeds throughput.
    asked_rate_per_s and achieved_rate_per_s are over the arrivals and the sends themselves.
    closed_loop: what `kept` found, where the client was one; sessions: what `summarise_sessions`
    found, where there were any; such runs ask for no rate.
    TTFT and TBT are of every token that came, also of requests that failed later; TPOT and E2E
    are of completed requests. None: no such value, or too few samples.
    intervals_95: of means, percentiles, attainment by token and request, and goodput, over this
    run's requests, whose gaps count as one draw; they say nothing of another seed or machine.
    steady: the same from the end of the warm-up to the last arrival, or why there is no such time.
    receive_lag_s and answers are of servers behind a socket. Where these do not say when tokens
    came (verdict's notes), what rests on single tokens is None: tbt_s, itl_chunk_s, attainment
    by token and time, fluidity_index, qoe and stalls. Where answers may end by themselves
    (engine.allow_early_end), those that did were asked for no more tokens than they had.
    """
    run = Evidence.of(table, events, simulated=simulated)
    log, answers, lag = run.log, run.answers, run.receive_lag
    duration_s, times_known = log.duration_s, surplus_share(run.answers) <= MAX_SURPLUS_SHARE
    attained = Attained.of(log, slo, times_known=times_known)
    latencies = _latencies(log, times_known)
    return {
        "num_requests": len(log),
        "num_completed": int(log.completed.sum()),
        "num_failed": int(log.failed.sum()),
        "num_timeouts": int((log.status == "timeout").sum()),
        "duration_s": duration_s,
        **latencies,
        "request_throughput_per_s": _per_s(log.completed.sum(), duration_s),
        "output_throughput_tokens_per_s": _per_s(len(log.times_s), duration_s),
        "asked_rate_per_s": rate_per_s(log.arrival_s) if run.asks_rate else None,
        "achieved_rate_per_s": rate_per_s(log.sent_s[np.isfinite(log.sent_s)]),
        "slo": slo.told(),
        "slo_attainment": attained.shares(times_known=times_known),
        "goodput_per_s": _per_s(attained.good.sum(), duration_s),
        "intervals_95": uncertainty.of_run(log, attained, latencies, times_known=times_known),
        "fluidity_index": summarise_fluidity(log, slo) if times_known else None,
        "qoe": summarise_qoe(log, slo) if times_known else None,
        "stalls": summarise_stalls(log, stall_s) if times_known else None,
        "steady": summarise_steady(log, run.course, attained, times_known),
        "models": _by_model(log, slo, attained, times_known),
        **({"closed_loop": asdict(run.kept)} if run.kept else {}),
        **({"sessions": run.sessions} if run.sessions else {}),
        **run.devices,
        **({"receive_lag_s": lag} if lag else {}),
        **({"answers": answers} if answers else {}),
        "gpu_seconds": gpu_seconds(run.devices, num_devices, duration_s),
        "wall_s": wall_s,
        "errors": dict(Counter(filter(None, run.errors)).most_common(MAX_ERRORS)),
        "littles_law": run.law,
        "verdict": judge(run),
    }


# The keys of summary.json, of which some are of some runs alone.
KEYS = (
    "num_requests", "num_completed", "num_failed", "num_timeouts", "duration_s", "ttft_s",
    "ttft_sent_anchored_s", "tpot_s", "tpot_incl_first_s", "tbt_s", "itl_chunk_s", "e2e_s",
    "e2e_sent_anchored_s", "send_lag_s", "request_throughput_per_s",
    "output_throughput_tokens_per_s", "asked_rate_per_s", "achieved_rate_per_s", "slo",
    "slo_attainment", "goodput_per_s", "intervals_95", "fluidity_index", "qoe", "stalls", "steady",
    "models", "closed_loop", "sessions", "receive_lag_s", "answers", "gpu_seconds", "wall_s",
    "errors", "littles_law", "verdict", *OF_EVENTS,
)  # fmt: skip


def check_objective(name: str) -> None:
    """UsageError where no run's summary.json can have the number, told before there is one."""
    if not any(f"{name}.".startswith(f"{key}.") for key in KEYS):
        raise UsageError(
            f"objective={name}: summary.json has no such number; it begins with one of "
            f"{', '.join(sorted(KEYS))}"
        )


def gpu_seconds(
    devices: Mapping[str, Any], num_devices: float | None, duration_s: float
) -> float | None:
    """The integral of the slots held, or of all devices where a system takes and releases none."""
    if "slot_gpu_seconds" in devices:
        return float(sum(devices["slot_gpu_seconds"].values()))
    return None if num_devices is None else num_devices * duration_s


def over_time(table: pa.Table, interval_s: float) -> dict[str, Floats]:
    """Columns of one value per interval of the run, which ends at `time_s`.

    sent_per_s, tokens_per_s and mean_ttft_s (of the first tokens in the interval; nan: none) are
    over the interval; queued (sent, no token yet) and running (between first and last token) are
    at its end. The log has no time for the end of a request that failed before its first token:
    one that timed out counts as queued to the end, one with another failure not at all.
    """
    log = TokenLog.from_table(table)
    sent, started = np.isfinite(log.sent_s), log.started
    end_s = max(np.max(log.times_s, initial=0.0), np.max(log.sent_s[sent], initial=0.0))
    edges = np.arange(np.floor(end_s / interval_s) + 2) * interval_s
    first_s = log.first_s[started]

    def count(times_s: Floats) -> Floats:
        return np.histogram(times_s, edges)[0].astype(np.float64)

    num_first = count(first_s)
    ttft_sum_s = np.histogram(first_s, edges, weights=log.ttft_s[started])[0]
    mean_ttft_s = np.full(len(num_first), np.nan)
    np.divide(ttft_sum_s, num_first, out=mean_ttft_s, where=num_first > 0)
    waits = sent & (started | (log.status != "failed"))
    return {
        "time_s": edges[1:],
        "sent_per_s": count(log.sent_s[sent]) / interval_s,
        "tokens_per_s": count(log.times_s) / interval_s,
        "mean_ttft_s": mean_ttft_s,
        "queued": np.cumsum(count(log.sent_s[waits]) - num_first),
        "running": np.cumsum(num_first - count(log.last_s[started])),
    }


def _by_model(
    log: TokenLog, slo: Slo, attained: Attained, times_known: bool
) -> dict[str, dict[str, Any]]:
    """By the name that requests carry, the most requested first. Where there are several: each
    one's latencies, its SLO in seconds, and its goodput, which add up to the run's."""
    of_request = {"ttft_s": log.ttft_s, "tpot_s": log.tpot_s, "e2e_s": log.e2e_s}
    gaps_s = log.tbt_s_by_model() if times_known else [np.empty(0)] * len(log.models)
    counts = np.bincount(log.of_model)
    found: dict[str, dict[str, Any]] = {}
    for index in np.argsort(-counts, kind="stable").tolist():
        name, rows = log.models[index], log.of_model == index
        own = attained.only(rows)
        found[name] = {
            "num_requests": int(counts[index]),
            "slo_attainment": own.shares(times_known=times_known),
        }
        if len(counts) > 1:
            found[name] |= {
                "slo": {f"{kind}_s": limit_s for kind, limit_s in slo.limits_s(name).items()},
                **{key: distribution(values_s[rows]) for key, values_s in of_request.items()},
                "tbt_s": distribution(gaps_s[index]),
                "goodput_per_s": _per_s(own.good.sum(), log.duration_s),
            }
    return found


def _latencies(log: TokenLog, times_known: bool) -> dict[str, dict[str, float | int | None]]:
    per_request = {
        "ttft_s": log.ttft_s,
        "tpot_s": log.tpot_s,
        "e2e_s": log.e2e_s,
        "tpot_incl_first_s": log.tpot_incl_first_s,
        "ttft_sent_anchored_s": log.first_s - log.sent_s,
        "e2e_sent_anchored_s": log.e2e_s - log.send_lag_s,
        "send_lag_s": log.send_lag_s,
    }
    found = {name: distribution(values) for name, values in per_request.items()}
    found["tbt_s"] = distribution(log.tbt_s() if times_known else np.empty(0))
    if not times_known:
        return found | {"itl_chunk_s": dict(found["tbt_s"])}
    # many millions of gaps need not be sorted twice
    same = dict(found["tbt_s"]) if log.token_chunks else distribution(log.itl_chunk_s())
    return found | {"itl_chunk_s": same}


def _per_s(count: float, duration_s: float) -> float | None:
    return float(count) / duration_s if duration_s > 0 else None
