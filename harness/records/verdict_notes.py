"""What a reader of a VALID run must know besides its numbers: sentences, none of which makes a run
INVALID."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.records.answers import counted, prompt_miss
from harness.records.evidence import (
    MAX_FAILED_SHARE,
    MAX_LAG_S,
    MAX_PROMPT_MISS,
    MAX_SURPLUS_SHARE,
    Evidence,
)
from harness.records.steady import AT_ONCE, NOT_OVER, TOO_FEW, Course, grew

NOTED_PROMPT_MISS = 0.01  # of the prompts' tokens, by the server's count
NOTED_DRAIN_SHARE = 0.5  # of the run's duration, after the last arrival
NOTED_BEHIND_SHARE = 0.05  # of the time that a paced engine's layers were to take
Note = tuple[str, str]  # its name, by which runs can be filtered, and a sentence


def notes(run: Evidence) -> Iterator[Note]:
    yield from _without_room(run.devices.get("host_full", {}))
    yield from _behind_pace(run.devices.get("pace", {}))
    for server, told in run.devices.get("scrapes_failed", {}).items():
        yield (
            "metrics failed",
            f"{told['num_failed']} pages of metrics of {server} failed beside {told['num_pages']}, "
            f"the last with: {told['last_error']}",
        )
    yield from _stalls(run.receive_lag)
    yield from (("certificate", told) for told in run.uncertified)
    yield from _odd_answers(run.answers)
    if run.failed_share > MAX_FAILED_SHARE:
        told = f"{run.failed_share:.0%} of the requests failed: latencies are of the others"
        yield "requests failed", told
    else:
        yield from (("standstill", told) for told in stood_still(run.standstills))
    yield from _unsteady(run.course)


def _unsteady(course: Course) -> Iterator[Note]:
    if course.reason in (TOO_FEW, AT_ONCE):  # such a run was not about an arrival rate
        return
    if course.reason == NOT_OVER:
        yield (
            "short run",
            "the run was shorter than its warm-up: TTFT or E2E latency had not settled in its "
            "first half (MSER-5), so its means depend on how long it was",
        )
    if grew(course.backlog):
        yield (
            "growing backlog",
            "the backlog still grew at the last arrival: on average "
            f"{course.backlog[0]:.3g} and later {course.backlog[-1]:.3g} requests were unfinished "
            "in the second half of the arrivals, so a longer run has longer latencies",
        )
    if course.drain_share > NOTED_DRAIN_SHARE:
        yield (
            "long drain",
            f"the drain after the last arrival took {course.drain_share:.0%} of the run "
            f"({course.drain_s:.3g} s): rates over the whole run are lower than under load",
        )


def _without_room(host_full: Mapping[str, Any]) -> Iterator[Note]:
    for node, full in host_full.items():
        yield (
            "host cache full",
            f"host KV cache full for {full['seconds']:.3g} s on {node} ({full['num_waits']} waits "
            f"for room): engine.pool.host_kv_bytes={full['host_kv_bytes']}",
        )


def _behind_pace(pace: Mapping[str, float]) -> Iterator[Note]:
    share = pace["behind_s"] / pace["paced_s"] if pace else 0.0
    if share > NOTED_BEHIND_SHARE:
        yield (
            "behind its pace",
            f"iterations took {share:.0%} longer than their pace (engine.elastic.layer_s, "
            "engine.elastic.token_s): this machine computes more slowly, so latencies are its own",
        )


def _stalls(lag: Mapping[str, Any] | None) -> Iterator[Note]:
    if lag is None:
        return
    lag_s = lag["tokens_max" if lag["stamped_by"] == "kernel" else "max"]
    if lag_s > MAX_LAG_S:
        yield (
            "client stalled",
            f"the client once read nothing for {lag_s * 1e3:.0f} ms: single latencies, and "
            "percentiles beyond P99, can be off by that",
        )


def _odd_answers(answers: Mapping[str, Any] | None) -> Iterator[Note]:
    if answers is None:
        return
    total = answers["num_answers"]
    miss = prompt_miss(answers)
    if NOTED_PROMPT_MISS < abs(miss) <= MAX_PROMPT_MISS:
        yield "prompt lengths", counted(answers, miss)
    if answers["num_surplus"] > MAX_SURPLUS_SHARE * total:
        yield (
            "late usage",
            f"{answers['num_surplus']} of {total} answers had tokens that only the usage at their "
            "end told of: when these came is not known, so there is no TBT and no attainment by "
            "token or time",
        )
    if answers["num_early"]:
        yield (
            "early ends",
            f"{answers['num_early']} of {total} answers ended before all tokens asked for had "
            "come: by engine.allow_early_end=true they are complete with what they had",
        )
    if answers["num_buffered"]:
        yield (
            "buffered answers",
            f"{answers['num_buffered']} of {total} answers were buffered: all their tokens came in "
            "one event, so their TPOT and TBT are not the server's",
        )


def stood_still(standstills: Mapping[str, float]) -> Iterator[str]:
    for name, seconds in standstills.items():
        yield f"{name} stood still: nobody got a token for {seconds:.3g} s while requests timed out"
