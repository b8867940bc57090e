"""Whether a run measured what it was asked to: VALID, or INVALID with each reason.

The client judges itself: a late client, a lost request or a missed rate makes numbers that look
like the server's but are not. Requests that failed with a stated error do not invalidate a run;
they count against attainment and goodput. Time runs forward in every world: no token comes before
the one ahead of it or before its request. A simulated client is never late, and a simulated run
must satisfy Little's law. What a reader of a valid run must know besides is noted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from harness.records.token_log import Floats, TokenLog

MAX_LAG_S = 0.005  # P99 of the send lag, or MAX_LAG_SHARE of the median TTFT where that is larger
MAX_LAG_SHARE = 0.01
MAX_RATE_MISS = 0.02
MAX_LITTLE_GAP = 1e-6  # relative; a simulated run has no clock but one, so only rounding is left
ROUNDING_S = 1e-9  # of times up to some days in float64: what is less below 0 is no latency below 0


def judge(
    log: TokenLog,
    errors: list[str],
    law: Mapping[str, Any],
    devices: Mapping[str, Any],
    *,
    simulated: bool,
) -> dict[str, Any]:
    """{"status": "VALID" | "INVALID", "reasons": [one sentence each]}, and "notes", sentences that
    do not make it invalid, where there are any.

    `errors` holds the error text of each request; empty: none was given. `law` is `littles_law`
    of the run; on a real engine its gap is the client's lag, which is judged by itself. `devices`:
    what `summarise_events` found.
    """
    reasons = [*_late(log), *_silent(log, errors), *_off_rate(log), *_backwards(log)]
    if simulated:
        reasons += _against_little(law)
    if not log.completed.any():
        reasons.append(f"none of {len(log)} requests completed")
    notes = list(_without_room(devices.get("host_full", {})))
    verdict = {"status": "INVALID" if reasons else "VALID", "reasons": reasons}
    return verdict | ({"notes": notes} if notes else {})


def rate_per_s(times_s: Floats) -> float | None:
    """(n − 1) / (last − first) of finite `times_s`; None where that says nothing."""
    if len(times_s) < 2:
        return None
    span_s = float(times_s.max() - times_s.min())
    return (len(times_s) - 1) / span_s if span_s > 0 else None


def _late(log: TokenLog) -> Iterator[str]:
    lag_s = log.send_lag_s[np.isfinite(log.send_lag_s)]
    if not len(lag_s):
        return
    p99_s = float(np.percentile(lag_s, 99))
    ttft_s = log.ttft_s[log.started]
    limit_s = max(MAX_LAG_S, MAX_LAG_SHARE * float(np.median(ttft_s)) if len(ttft_s) else 0.0)
    if p99_s > limit_s:
        yield (
            f"the client was late: P99 send lag {p99_s * 1e3:.1f} ms is over "
            f"{limit_s * 1e3:.1f} ms (the larger of 5 ms and 1 % of the median TTFT)"
        )


def _silent(log: TokenLog, errors: list[str]) -> Iterator[str]:
    total = len(log)
    stated = np.array([bool(error) for error in errors], dtype=np.bool_)
    failed = (log.status == "failed") | (log.status == "timeout")
    counts = {
        "were never sent": log.status == "scheduled",
        "were sent but neither completed nor failed": log.status == "sent",
        "failed without a stated error": failed & ~stated,
    }
    for what, rows in counts.items():
        if rows.any():
            yield f"{int(rows.sum())} of {total} requests {what}"
    differs = log.completed & (log.num_tokens != log.asked_tokens)
    if differs.any():
        row = int(np.argmax(differs))
        yield (
            f"{int(differs.sum())} of {total} requests completed with another number of tokens "
            f"than asked, the first with {log.num_tokens[row]} of {log.asked_tokens[row]}"
        )


def _backwards(log: TokenLog) -> Iterator[str]:
    latencies = {"TTFT": log.ttft_s, "E2E latency": log.e2e_s, "gap between tokens": log.tbt_s()}
    for what, values_s in latencies.items():
        below = values_s < -ROUNDING_S  # nan, of what did not happen, is not
        if below.any():
            yield (
                f"time ran backwards: {int(below.sum())} of {len(values_s)} values of {what} are "
                f"negative, down to {float(values_s[below].min()):.6g} s"
            )


def _against_little(law: Mapping[str, Any]) -> Iterator[str]:
    gap = law["relative_gap"]
    if gap is not None and not abs(gap) <= MAX_LITTLE_GAP:
        yield (
            f"Little's law is broken: {law['l']:.6g} requests in the system on average, but "
            f"λ·W is {law['lambda_w']:.6g} (limit {MAX_LITTLE_GAP:g} apart)"
        )


def _without_room(host_full: Mapping[str, Any]) -> Iterator[str]:
    for node, full in host_full.items():
        yield (
            f"host KV cache full for {full['seconds']:.3g} s on {node} ({full['num_waits']} waits "
            f"for room): engine.pool.host_kv_bytes={full['host_kv_bytes']}"
        )


def _off_rate(log: TokenLog) -> Iterator[str]:
    """Compares the rate of the requests that were sent with the rate asked for those same
    requests; a shift within MAX_LAG_S over the whole schedule is no miss, however short it is."""
    was_sent = np.isfinite(log.sent_s)
    asked = rate_per_s(log.arrival_s[was_sent])
    achieved = rate_per_s(log.sent_s[was_sent])
    if asked is None or achieved is None:
        return
    miss = achieved / asked - 1
    shift_s = abs(1 / achieved - 1 / asked) * (int(was_sent.sum()) - 1)
    if abs(miss) > MAX_RATE_MISS and shift_s > MAX_LAG_S:
        yield (
            f"the achieved rate {achieved:.3f}/s missed the asked {asked:.3f}/s by "
            f"{abs(miss) * 100:.1f} % (limit 2 %)"
        )
