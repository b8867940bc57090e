"""What a run's device events add up to: model switches, how busy each instance was, and how long
hosts had no room for KV.

Reads what pooled instances stamp (`harness.pooled.instance`); a run without such events has
neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

import numpy as np

from harness.records.percentiles import distribution

Event = Mapping[str, Any]  # a row of Recorder.events


def summarise_events(events: Iterable[Event], duration_s: float) -> dict[str, Any]:
    """`switches`, `busy_share`, `host_full`, `slot_gpu_seconds`, `moved_bytes`, `kv_moves` and
    `lease_seconds`, as far as `events` tell of them: keys of summary.json."""
    events = list(events)
    latencies_s, hidden = switches(events)
    busy = busy_s(events)
    found: dict[str, Any] = {}
    if latencies_s:
        found["switches"] = {
            "count": len(latencies_s),
            "latency_s": distribution(np.array(latencies_s)),
            "hidden_share": sum(hidden) / len(hidden),
        }
    if busy and duration_s > 0:
        shares = {name: seconds / duration_s for name, seconds in sorted(busy.items())}
        found["busy_share"] = {"mean": float(np.mean(list(shares.values()))), "instances": shares}
    if full := host_full(events):
        found["host_full"] = full
    if held := slot_seconds(events):
        found["slot_gpu_seconds"] = held
    if moved := moved_bytes(events):
        found["moved_bytes"] = moved
    if pages := kv_moves(events):
        found["kv_moves"] = pages
    if leases := lease_seconds(events):
        found["lease_seconds"] = leases
    for event in events:
        if event["kind"] == "server_paging":  # one server has a plug-in
            names = ("iterations", "slices", "preemptions", "lost_blocks")
            found["plugin"] = {name: event["fields"][name] for name in names}
    return found


def slot_seconds(events: Iterable[Event]) -> dict[str, float]:
    """By role: seconds that slots were held for it, times their devices."""
    total: dict[str, float] = {}
    for event in events:
        if event["kind"] == "slot":
            held_s = (event["end_s"] - event["start_s"]) * event["fields"]["num_devices"]
            role = event["fields"]["role"]
            total[role] = total.get(role, 0.0) + held_s
    return dict(sorted(total.items()))


def moved_bytes(events: Iterable[Event]) -> dict[str, int]:
    """By purpose: bytes of weights and KV that moved between memories, of each device."""
    total: dict[str, int] = {}
    for event in events:
        if event["kind"] in ("transfer", "kv_move"):
            purpose = event["fields"]["purpose"]
            total[purpose] = total.get(purpose, 0) + event["fields"]["bytes"]
    return dict(sorted(total.items()))


def kv_moves(events: Iterable[Event]) -> dict[str, dict[str, float]]:
    """By purpose: how many requests' KV moved in how many copies, its bytes (of each device), and
    seconds in which some such copy was under way. A server's plug-in counts them itself."""
    of: dict[str, list[Event]] = {}
    counted: dict[str, dict[str, float]] = {}
    for event in events:
        if event["kind"] == "kv_move":
            of.setdefault(event["fields"]["purpose"], []).append(event)
        elif event["kind"] == "server_paging":
            for purpose, moved in event["fields"]["moves"].items():
                counted[purpose] = {
                    "copies": int(moved["copies"]), "requests": int(moved["pages"]),
                    "bytes": int(moved["bytes"]), "seconds": moved["seconds"],
                }  # fmt: skip
    return counted | {
        purpose: {
            "copies": len(moves),
            "requests": sum(len(each["fields"]["requests"]) for each in moves),
            "bytes": sum(each["fields"]["bytes"] for each in moves),
            "seconds": covered_s((each["start_s"], each["end_s"]) for each in moves),
        }
        for purpose, moves in sorted(of.items())
    }


def lease_seconds(events: Iterable[Event]) -> dict[str, float]:
    """Of memory lent by one device to another: how many leases, and the sum of their durations."""
    leases = [event for event in events if event["kind"] == "lease"]
    if not leases:
        return {}
    return {
        "leases": len(leases),
        "seconds": sum(each["end_s"] - each["start_s"] for each in leases),
        "byte_seconds": sum(
            (each["end_s"] - each["start_s"]) * each["fields"]["bytes"] for each in leases
        ),
    }


def switches(events: Iterable[Event]) -> tuple[list[float], list[bool]]:
    """Each switch's latency, from the decision to the start of the next model's work (Aegaeon
    Fig. 15), and whether prefetching hid the load: it was complete when the switch began."""
    made = [event for event in events if event["kind"] == "switch"]
    latencies_s = [event["end_s"] - event["start_s"] for event in made]
    return latencies_s, [event["fields"]["hidden"] for event in made]


def busy_s(events: Iterable[Event]) -> dict[str, float]:
    """Seconds that each instance spent running batches."""
    total: dict[str, float] = {}
    for event in events:
        if event["kind"] == "run":
            spent_s = event["end_s"] - event["start_s"]
            total[event["instance"]] = total.get(event["instance"], 0.0) + spent_s
    return total


def host_full(events: Iterable[Event]) -> dict[str, dict[str, float]]:
    """Of each node whose host KV cache had no room for KV that was to leave a device: how often,
    and the seconds in which anybody waited for it, to the run's end where it never came."""
    waits: dict[str, list[Event]] = {}
    for event in events:
        if event["kind"] == "host_full":
            waits.setdefault(event["instance"], []).append(event)
    return {
        node: {
            "num_waits": len(of_node),
            "seconds": covered_s((event["start_s"], event["end_s"]) for event in of_node),
            "host_kv_bytes": of_node[0]["fields"]["host_kv_bytes"],
        }
        for node, of_node in sorted(waits.items())
    }


def standstills_s(events: Iterable[Event]) -> dict[str, float]:
    """The longest time for which each server gave nobody a token while requests timed out."""
    found: dict[str, float] = {}
    for event in events:
        if event["kind"] == "no_progress":
            silent_s = event["end_s"] - event["start_s"]
            found[event["instance"]] = max(found.get(event["instance"], 0.0), silent_s)
    return found


def covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of (start, end)."""
    total_s, until_s = 0.0, -inf
    for start_s, end_s in sorted(spans):
        total_s += max(end_s - max(start_s, until_s), 0.0)
        until_s = max(until_s, end_s)
    return total_s
