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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.records.answers import cached_shares, counted, prompt_miss
from harness.records.closed_loop import Kept
from harness.records.device_events import faults_struck
from harness.records.evidence import (
    MAX_FAILED_SHARE,
    MAX_LAG_S,
    MAX_PROMPT_MISS,
    Evidence,
    rate_per_s,
)
from harness.records.token_log import TokenLog
from harness.records.verdict_notes import notes, stood_still

LIMIT = f"{MAX_LAG_S * 1e3:g} ms"
LATE = "the client was late"
MAX_RATE_MISS = 0.02  # of the asked rate; of a closed loop's concurrency
MAX_CACHED_SHARE = 0.01  # of the prompts' tokens, from a prefix cache where none was meant
MAX_LITTLE_GAP = 1e-6  # relative; a simulated run has no clock but one, so only rounding is left
ROUNDING_S = 1e-9  # of times up to some days in float64: what is less below 0 is no latency below 0


def judge(run: Evidence) -> dict[str, Any]:
    """{"status": "VALID" | "INVALID", "reasons": [one sentence each]}; where there are any, the
    names of broken "rules", and "notes", sentences that do not make it invalid, with the names of
    what is "noted"."""
    broken = [rule for rule in rules(run) if rule.broken]
    reasons = [reason for rule in broken for reason in rule.broken]
    verdict = {"status": "INVALID" if reasons else "VALID", "reasons": reasons}
    noted = [*notes(run)]
    named = {
        "rules": [rule.name for rule in broken],
        "noted": [*dict.fromkeys(name for name, _ in noted)],
        "notes": [sentence for _, sentence in noted],
    }
    return verdict | {key: told for key, told in named.items() if told}


Checked = tuple[str, list[str]]  # what was found, and a sentence for each breach


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that a VALID run has to satisfy."""

    name: str
    asks: str  # with its limit
    found: str  # what was measured; empty: there is no one number
    broken: Sequence[str]  # a sentence for each way in which it was not satisfied
    applies: bool = True  # False: a run of this kind cannot break it


def rules(run: Evidence) -> list[Rule]:
    """Every rule of the verdict, in the order of `judge`'s reasons."""
    lag, answers, failed = run.receive_lag, run.answers, f"{MAX_FAILED_SHARE:.0%} of the requests"
    asks = {
        "sent in time": f"P99 of the send lag is at most {LIMIT}",
        "every answer": "each request was sent and ended, with the tokens it asked for or with a "
        "stated error",
        "asked rate": f"requests were sent at the asked rate, within {MAX_RATE_MISS:.0%}",
        "concurrency kept": "as many requests as asked for were in flight, from the first "
        f"time that they were until the last was sent, within {MAX_RATE_MISS:.0%}, or each "
        f"followed another within {LIMIT}",
        "time runs forward": "no latency is negative",
        "stamped in time": f"P99 of the receive lag is at most {LIMIT}, alone and with the send "
        "lag",
        "the prompts asked for": f"at most {MAX_CACHED_SHARE:.0%} of the prompts' tokens came from "
        "a prefix cache that was not meant, and the server counted the prompts as we did, within "
        f"{MAX_PROMPT_MISS:.0%}",
        "no standstill": f"where over {failed} failed, no server stood still",
        "Little's law": f"requests in the system are λ·W, within {MAX_LITTLE_GAP:g}",
        "something to measure": "a request completed",
        "each fault struck": "what faults.* names was alive, and then dead or stopped as planned",
    }
    checked: list[Checked | None] = [  # None: a run of this kind cannot break it
        _sent_in_time(run), _every_answer(run), _asked_rate(run) if run.asks_rate else None,
        _concurrency_kept(run.kept) if run.kept else None, _time_runs_forward(run.log),
        _stamped_in_time(lag, _to_do(run)) if lag else None,
        _prompts_asked_for(answers) if answers else None,
        _no_standstill(run), _littles_law(run) if run.simulated else None,
        _something_to_measure(run.log),
        faults_struck(run.devices["faults"]) if "faults" in run.devices else None,
    ]  # fmt: skip
    return [
        Rule(name, asked, *(found or ("", [])), applies=found is not None)
        for (name, asked), found in zip(asks.items(), checked, strict=True)
    ]


def _sent_in_time(run: Evidence) -> Checked:
    lag_s = run.log.send_lag_s[np.isfinite(run.log.send_lag_s)]
    if not len(lag_s):
        return "", []
    p99_s = float(np.percentile(lag_s, 99))
    late = f"{LATE}: P99 send lag {p99_s * 1e3:.1f} ms is over {LIMIT}"
    late += _to_do(run)
    return f"{p99_s * 1e3:.2f} ms", [late] if p99_s > MAX_LAG_S else []


def _to_do(run: Evidence) -> str:
    """More I/O processes, and what else to close; empty: neither is known to help."""
    named = [f"{each['name']} (pid {each['pid']}, {each['cores']:g} cores)" for each in run.others]
    close = f"; close what else was busy: {', '.join(named)}" if named else ""
    return (run.crowded if run.asks_rate else "") + close


def _stamped_in_time(lag: Mapping[str, Any], to_do: str) -> Checked:
    where = {
        "p99": "P99 receive lag over the run",
        "tokens_p99": "P99 receive lag over tokens",
        "with_send_p99": "P99 of send and receive lag of first tokens together",
    }
    if lag["stamped_by"] == "kernel":
        del where["p99"]  # a late thread makes none of its stamps late
    late = [key for key in where if lag[key] > MAX_LAG_S]
    over = ", ".join(f"{where[key]} {lag[key] * 1e3:.1f} ms" for key in late)
    busy = f"; its thread waited {lag['cpu_wait']:.3g} s for a core" if lag["cpu_wait"] else ""
    busy += to_do
    broken = [f"the client's stamps were late: {over} (limit {LIMIT}){busy}"] if late else []
    return f"{lag['p99'] * 1e3:.2f} ms", broken


def _prompts_asked_for(answers: Mapping[str, Any]) -> Checked:
    cached = {} if answers["caching_intended"] else cached_shares(answers)
    broken = [
        f"{share:.1%} of the prompts' tokens came from a prefix cache, by {who} (limit "
        f"{MAX_CACHED_SHARE:.0%}): other prompts than before are sent with "
        "engine.cold=true; engine.allow_cached=true says that hits are meant"
        for who, share in cached.items()
        if share > MAX_CACHED_SHARE
    ]
    miss = prompt_miss(answers)
    if abs(miss) > MAX_PROMPT_MISS:
        broken.append(f"prompts were not what was asked: {counted(answers, miss)}")
    return f"{miss:+.1%}", broken


def _no_standstill(run: Evidence) -> Checked:
    failed = run.failed_share > MAX_FAILED_SHARE
    return f"{run.failed_share:.1%} failed", [*stood_still(run.standstills)] if failed else []


def _every_answer(run: Evidence) -> Checked:
    log = run.log
    stated = np.array([bool(error) for error in run.errors], dtype=np.bool_)
    counts = {
        "were never sent": log.status == "scheduled",
        "were sent but neither completed nor failed": log.status == "sent",
        "failed without a stated error": log.failed & ~stated,
    }
    broken = [
        f"{int(rows.sum())} of {len(log)} requests {what}"
        for what, rows in counts.items()
        if rows.any()
    ]
    differs = log.completed & (log.num_tokens != log.asked_tokens)
    if differs.any():
        row = int(np.argmax(differs))
        broken.append(
            f"{int(differs.sum())} of {len(log)} requests completed with another number of tokens "
            f"than asked, the first with {log.num_tokens[row]} of {log.asked_tokens[row]}"
        )
    return f"{int(log.completed.sum())} of {len(log)} completed", broken


def _time_runs_forward(log: TokenLog) -> Checked:
    latencies = {"TTFT": log.ttft_s, "E2E latency": log.e2e_s, "gap between tokens": log.tbt_s()}
    broken = [
        f"time ran backwards: {int(below.sum())} of {len(values_s)} values of {what} are "
        f"negative, down to {float(values_s[below].min()):.6g} s"
        for what, values_s in latencies.items()
        if (below := values_s < -ROUNDING_S).any()  # nan, of what did not happen, is not
    ]
    return "", broken


def _littles_law(run: Evidence) -> Checked:
    gap = run.law["relative_gap"]
    if gap is None:
        return "", []
    told = (
        f"Little's law is broken: {run.law['l']:.6g} requests in the system on average, but "
        f"λ·W is {run.law['lambda_w']:.6g} (limit {MAX_LITTLE_GAP:g} apart)"
    )
    return f"{gap:.1e}", [] if abs(gap) <= MAX_LITTLE_GAP else [told]


def _something_to_measure(log: TokenLog) -> Checked:
    return "", [] if log.completed.any() else [f"none of {len(log)} requests completed"]


def _concurrency_kept(found: Kept) -> Checked:
    mean, late_s = found.mean_in_flight, found.late_s
    if mean is None or late_s is None:
        return f"not known: {found.reason}", []
    told = (
        f"the closed loop kept {mean:.3f} requests in flight of the {found.concurrency} asked for: "
        f"each followed another {late_s * 1e3:.1f} ms late (limit {LIMIT})"
    )
    missed = abs(mean / found.concurrency - 1) > MAX_RATE_MISS and abs(late_s) > MAX_LAG_S
    return f"{mean:.3f} in flight", [told] if missed else []


def _asked_rate(run: Evidence) -> Checked:
    """Compares the rate of the requests that were sent with the rate asked for those same
    requests; a shift within MAX_LAG_S over the whole schedule is no miss, however short it is."""
    was_sent = np.isfinite(run.log.sent_s)
    asked = rate_per_s(run.log.arrival_s[was_sent])
    achieved = rate_per_s(run.log.sent_s[was_sent])
    if asked is None or achieved is None:
        return "", []
    miss = abs(achieved / asked - 1)
    shift_s = abs(1 / achieved - 1 / asked) * (int(was_sent.sum()) - 1)
    told = (
        f"the achieved rate {achieved:.3f}/s missed the asked {asked:.3f}/s by {miss * 100:.1f} % "
        "(limit 2 %)"
    )
    return f"{miss:.2%} off", [told] if miss > MAX_RATE_MISS and shift_s > MAX_LAG_S else []
