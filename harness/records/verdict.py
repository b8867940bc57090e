"""Whether a run measured what it was asked to: VALID, or INVALID with each reason.

The client judges itself: a late client, a lost request or a missed rate makes numbers that look
like the server's but are not. Requests that failed with a stated error do not invalidate a run;
they count against attainment and goodput, and a tenth of them is noted. An answer must be the one
asked for: no prompt from a warm cache unless that is meant, none of another length, and no server
that stands still. Time runs forward on every engine: no token comes before
the one ahead of it or before its request. A simulated client is never late, and a simulated run
must satisfy Little's law. What a reader of a valid run must know besides is noted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.records.token_log import Floats, TokenLog

MAX_LAG_S = 0.005  # P99 of the send lag, of the receive lag, and of both together
MAX_RATE_MISS = 0.02
MAX_CACHED_SHARE = 0.01  # of the prompts' tokens, from a prefix cache where none was meant
NOTED_PROMPT_MISS = 0.01  # of the prompts' tokens, by the server's count
MAX_PROMPT_MISS = 0.1
MAX_SURPLUS_SHARE = 0.01  # of the answers: more, and no metric of single tokens is given
MAX_FAILED_SHARE = 0.1  # of the requests: more is noted
MAX_LITTLE_GAP = 1e-6  # relative; a simulated run has no clock but one, so only rounding is left
ROUNDING_S = 1e-9  # of times up to some days in float64: what is less below 0 is no latency below 0


def judge(
    log: TokenLog,
    errors: list[str],
    law: Mapping[str, Any],
    devices: Mapping[str, Any],
    *,
    simulated: bool,
    receive_lag: Mapping[str, Any] | None = None,
    answers: Mapping[str, Any] | None = None,
    standstills: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """{"status": "VALID" | "INVALID", "reasons": [one sentence each]}, and "notes", sentences that
    do not make it invalid, where there are any.

    `errors` holds the error text of each request; empty: none was given. `law` is `littles_law`
    of the run; on a real engine its gap is the client's lag, which is judged by itself. `devices`:
    what `summarise_events` found. `receive_lag`, `answers`: what the functions of these names found
    of a server behind a socket; `standstills`: seconds for which a server gave nobody a token while
    requests timed out.
    """
    asked = rules(log, errors, law, simulated=simulated, receive_lag=receive_lag, answers=answers,
                  standstills=standstills)  # fmt: skip
    reasons = [reason for rule in asked for reason in rule.broken]
    failed_share = _failed_share(log)
    notes = list(_without_room(devices.get("host_full", {})))
    notes += [*_stalls(receive_lag), *_odd_answers(answers)]
    if failed_share > MAX_FAILED_SHARE:
        notes.append(f"{failed_share:.0%} of the requests failed: latencies are of the others")
    else:
        notes += _stood_still(standstills or {})
    verdict = {"status": "INVALID" if reasons else "VALID", "reasons": reasons}
    return verdict | ({"notes": notes} if notes else {})


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that a VALID run has to satisfy."""

    name: str
    asks: str  # with its limit
    found: str  # what was measured; empty: there is no one number
    broken: tuple[str, ...]  # a sentence for each way in which it was not satisfied
    applies: bool = True  # False: a run of this kind cannot break it


def rules(
    log: TokenLog,
    errors: list[str],
    law: Mapping[str, Any],
    *,
    simulated: bool,
    receive_lag: Mapping[str, Any] | None = None,
    answers: Mapping[str, Any] | None = None,
    standstills: Mapping[str, float] | None = None,
) -> list[Rule]:
    """Every rule of the verdict, in the order of `judge`'s reasons. Arguments as of `judge`."""
    lag_s, miss = log.send_lag_s[np.isfinite(log.send_lag_s)], _rate_miss(log)
    limit = f"{MAX_LAG_S * 1e3:g} ms"
    failed = _failed_share(log) > MAX_FAILED_SHARE
    gap = law["relative_gap"]
    return [
        Rule("sent in time", f"P99 of the send lag is at most {limit}",
             f"{np.percentile(lag_s, 99) * 1e3:.2f} ms" if len(lag_s) else "", tuple(_late(log))),
        Rule("every answer", "each request was sent and ended, with the tokens it asked for or "
             "with a stated error", f"{int(log.completed.sum())} of {len(log)} completed",
             tuple(_silent(log, errors))),
        Rule("asked rate", f"requests were sent at the asked rate, within {MAX_RATE_MISS:.0%}",
             "" if miss is None else f"{abs(miss):.2%} off", tuple(_off_rate(log))),
        Rule("time runs forward", "no latency is negative", "", tuple(_backwards(log))),
        Rule("stamped in time", f"P99 of the receive lag is at most {limit}, alone and with the "
             "send lag", f"{receive_lag['p99'] * 1e3:.2f} ms" if receive_lag else "",
             tuple(_late_stamps(receive_lag)), receive_lag is not None),
        Rule("the prompts asked for", f"at most {MAX_CACHED_SHARE:.0%} of the prompts' tokens came "
             "from a prefix cache that was not meant, and the server counted the prompts as we did,"
             f" within {MAX_PROMPT_MISS:.0%}", f"{prompt_miss(answers):+.1%}" if answers else "",
             tuple(_other_answers(answers)), answers is not None),
        Rule("no standstill", f"where over {MAX_FAILED_SHARE:.0%} of the requests failed, no "
             "server stood still", f"{_failed_share(log):.1%} failed",
             tuple(_stood_still(standstills or {})) if failed else ()),
        Rule("Little's law", f"requests in the system are λ·W, within {MAX_LITTLE_GAP:g}",
             "" if gap is None else f"{gap:.1e}", tuple(_against_little(law)) if simulated else (),
             simulated),
        Rule("something to measure", "a request completed", "", () if log.completed.any() else
             (f"none of {len(log)} requests completed",)),
    ]  # fmt: skip


def _failed_share(log: TokenLog) -> float:
    return float(np.isin(log.status, ("failed", "timeout")).mean())


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
    if p99_s > MAX_LAG_S:
        yield (
            f"the client was late: P99 send lag {p99_s * 1e3:.1f} ms is over {MAX_LAG_S * 1e3:g} ms"
        )


def _late_stamps(lag: Mapping[str, Any] | None) -> Iterator[str]:
    if lag is None:
        return
    where = {
        "p99": "P99 receive lag over the run",
        "tokens_p99": "P99 receive lag over tokens",
        "with_send_p99": "P99 of send and receive lag of first tokens together",
    }
    if lag["stamped_by"] == "kernel":
        del where["p99"]  # a late thread makes none of its stamps late
    late = {what: lag[key] for key, what in where.items() if lag[key] > MAX_LAG_S}
    over = [f"{what} {lag_s * 1e3:.1f} ms" for what, lag_s in late.items()]
    if over:
        cpu_wait_s = lag["cpu_wait"]
        busy = f"; its thread waited {cpu_wait_s:.3g} s for a core" if cpu_wait_s else ""
        yield (
            f"the client's stamps were late: {', '.join(over)} (limit {MAX_LAG_S * 1e3:g} ms){busy}"
        )


def _stalls(lag: Mapping[str, Any] | None) -> Iterator[str]:
    if lag is None:
        return
    lag_s = lag["tokens_max" if lag["stamped_by"] == "kernel" else "max"]
    if lag_s > MAX_LAG_S:
        yield (
            f"the client once read nothing for {lag_s * 1e3:.0f} ms: single latencies, and "
            "percentiles beyond P99, can be off by that"
        )


def _other_answers(answers: Mapping[str, Any] | None) -> Iterator[str]:
    if answers is None:
        return
    if not answers["caching_intended"]:
        for who, share in cached_shares(answers).items():
            if share > MAX_CACHED_SHARE:
                yield (
                    f"{share:.1%} of the prompts' tokens came from a prefix cache, by {who} (limit "
                    f"{MAX_CACHED_SHARE:.0%}): other prompts than before are sent with "
                    "engine.cold=true; engine.allow_cached=true says that hits are meant"
                )
    miss = prompt_miss(answers)
    if abs(miss) > MAX_PROMPT_MISS:
        yield f"prompts were not what was asked: {_counted(answers, miss)}"


def _odd_answers(answers: Mapping[str, Any] | None) -> Iterator[str]:
    if answers is None:
        return
    total = answers["num_answers"]
    miss = prompt_miss(answers)
    if NOTED_PROMPT_MISS < abs(miss) <= MAX_PROMPT_MISS:
        yield _counted(answers, miss)
    if answers["num_surplus"] > MAX_SURPLUS_SHARE * total:
        yield (
            f"{answers['num_surplus']} of {total} answers had tokens that only the usage at their "
            "end told of: when these came is not known, so there is no TBT and no attainment by "
            "token or time"
        )
    if answers["num_early"]:
        yield (
            f"{answers['num_early']} of {total} answers ended before all tokens asked for had "
            "come: by engine.allow_early_end=true they are complete with what they had"
        )
    if answers["num_buffered"]:
        yield (
            f"{answers['num_buffered']} of {total} answers were buffered: all their tokens came in "
            "one event, so their TPOT and TBT are not the server's"
        )


def cached_shares(answers: Mapping[str, Any]) -> dict[str, float]:
    """Of the prompts' tokens, by who says so: the answers' usage, each server's counters."""
    found = {}
    if answers["cached_tokens"] is not None and answers["counted_prompt_tokens"]:
        share = answers["cached_tokens"] / answers["counted_prompt_tokens"]
        found["the answers' usage"] = share
    for name, counters in answers["prefix_cache"].items():
        if counters["queried_tokens"]:
            share = counters["hit_tokens"] / counters["queried_tokens"]
            found[f"{name}'s counters"] = share
    return found


def prompt_miss(answers: Mapping[str, Any]) -> float:
    """How far the server's count of the prompts' tokens is from what was asked; 0: no count."""
    counted, asked = answers["counted_prompt_tokens"], answers["asked_prompt_tokens"]
    return counted / asked - 1 if counted is not None and asked else 0.0


def _counted(answers: Mapping[str, Any], miss: float) -> str:
    return (
        f"the server counted {answers['counted_prompt_tokens']:,} prompt tokens where "
        f"{answers['asked_prompt_tokens']:,} were asked for ({miss:+.1%})"
    )


def _stood_still(standstills: Mapping[str, float]) -> Iterator[str]:
    for name, seconds in standstills.items():
        yield f"{name} stood still: nobody got a token for {seconds:.3g} s while requests timed out"


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
    miss = _rate_miss(log)
    if asked is None or achieved is None or miss is None:
        return
    shift_s = abs(1 / achieved - 1 / asked) * (int(was_sent.sum()) - 1)
    if abs(miss) > MAX_RATE_MISS and shift_s > MAX_LAG_S:
        yield (
            f"the achieved rate {achieved:.3f}/s missed the asked {asked:.3f}/s by "
            f"{abs(miss) * 100:.1f} % (limit 2 %)"
        )


def _rate_miss(log: TokenLog) -> float | None:
    """Relative, of the requests that were sent; None: they have no rate."""
    was_sent = np.isfinite(log.sent_s)
    asked = rate_per_s(log.arrival_s[was_sent])
    achieved = rate_per_s(log.sent_s[was_sent])
    return None if asked is None or achieved is None else achieved / asked - 1
