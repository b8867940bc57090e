"""How late the client's stamps can be: what the heartbeat of its I/O thread found.

A stamp of the kernel is not late, whatever the thread does; only where several events were read at
once the earlier ones have the last one's stamp. Where the client stamps, its thread's beats count:
while that thread could not look at its sockets, no token was stamped. A stall runs from a beat to
the next one, where that is late; a token stamped in a stall, or just after it, may have waited
since the stall began, since the thread may have been busy from then on. What waits for less than
two beats is not seen. Pure functions over the token log and the run's events.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from harness.records.device_events import Event
from harness.records.token_log import Floats, TokenLog

SAME_S = 1e-9  # of two numbers that were the same stamp


def receive_lag(log: TokenLog, events: Iterable[Event]) -> dict[str, Any] | None:
    """`p99` and `max` over the run's beats, `tokens_p99` and `tokens_max` over tokens, and
    `with_send_p99` over requests, of the send lag and the lag at the first token together: what
    the client may have added to a TTFT; `cpu_wait`, for which the thread was ready to run and had
    no core (None: not known). Seconds. `stamped_by`: kernel or client, where not every read had
    the kernel's stamp. None: nothing was read from sockets."""
    events = list(events)
    heart = next((event for event in events if event["kind"] == "heartbeat"), None)
    if heart is None:
        return None
    over_s = max(np.max(log.times_s, initial=0.0), np.nanmax(log.sent_s, initial=0.0))
    stalls = [
        (event["start_s"], event["end_s"])
        for event in events
        if event["kind"] == "stall" and event["start_s"] <= over_s  # later ones are of the end
    ]
    began_s, came_s = np.array(stalls, np.float64).reshape(-1, 2).T
    beat_s, stamped_by = float(heart["fields"]["beat_s"]), heart["fields"]["stamped_by"]
    quiet_s = min(float(heart["end_s"]), over_s) - float((came_s - began_s).sum())
    tokens_s, first_s = log.times_s, log.first_s[log.started]
    by_client = partial(lag_at, began_s=began_s, came_s=came_s, beat_s=beat_s)
    lag_s = partial(doubt_of, events=events) if stamped_by == "kernel" else by_client
    token_lag_s, first_lag_s = lag_s(tokens_s), lag_s(first_s)
    together_s = log.send_lag_s[log.started] + first_lag_s
    return {
        "p99": _p99(came_s - began_s, num_zeros=max(0, int(quiet_s / beat_s))),
        "max": float(np.max(came_s - began_s, initial=0.0)),
        "tokens_p99": _p99(token_lag_s),
        "tokens_max": float(np.max(token_lag_s, initial=0.0)),
        "with_send_p99": _p99(together_s[np.isfinite(together_s)]),
        "cpu_wait": heart["fields"].get("cpu_wait_s"),
        "stamped_by": stamped_by,
    }


def doubt_of(times_s: Floats, events: Iterable[Event]) -> Floats:
    """How long before each of `times_s`, stamps of the kernel, the token may have come: not at all,
    but where a read held several events, for the stamp is the last one's."""
    late = [event["fields"] for event in events if event["kind"] == "late_stamps"]
    lag_s = np.zeros(len(times_s))
    if not late:
        return lag_s
    came_s, since_s = (
        np.concatenate([each[key] for each in late]) for key in ("came_s", "since_s")
    )
    order = np.argsort(came_s)
    came_s, doubt_s = came_s[order], (came_s - since_s)[order]
    known = np.minimum(np.searchsorted(came_s, times_s - SAME_S), len(came_s) - 1)
    return np.where(np.abs(came_s[known] - times_s) <= SAME_S, doubt_s[known], lag_s)


def lag_at(times_s: Floats, began_s: Floats, came_s: Floats, beat_s: float) -> Floats:
    """How long each of `times_s` may have been waited for. `began_s`, `came_s`: of stalls,
    ascending, none of which overlap.

    What is stamped up to two beats after a stall may have waited for all of it. What is stamped
    within a stall may have come since the sockets were looked at before: that was at the stall's
    beginning, or, where another stall ends there and what it held up is read now, at that one's.
    """
    lag_s = np.zeros(len(times_s))
    if not len(began_s):
        return lag_s
    since_s = np.where(began_s <= np.roll(came_s, 1), np.roll(began_s, 1), began_s)
    since_s[0] = began_s[0]
    index = np.searchsorted(came_s, times_s - 2 * beat_s)
    for stall in (index, index + 1):  # one that has ended, and the next
        known = np.minimum(stall, len(began_s) - 1)
        after = times_s > came_s[known]
        waited_s = np.where(after, (came_s - began_s)[known], times_s - since_s[known])
        within = (stall < len(began_s)) & (began_s[known] <= times_s)
        lag_s = np.maximum(lag_s, np.where(within, waited_s, 0.0))
    return lag_s


def _p99(values_s: Floats, num_zeros: int = 0) -> float:
    """The 99th percentile of `values_s` and `num_zeros` zeros more; 0 of nothing."""
    total = len(values_s) + num_zeros
    rank = int(np.ceil(0.99 * total)) - 1 - num_zeros
    return float(np.sort(values_s)[rank]) if total and rank >= 0 else 0.0
