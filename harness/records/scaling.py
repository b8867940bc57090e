"""How a run scaled: instances by role, GPU seconds, what a start-up took, and whom it hurt.

From a finished run's requests and device events alone, live or simulated. An episode is a slot that
is held for loading, a switch of models, or what a system noted of its own scaling. Pure functions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa

from harness.records.attainment import GRACE_S
from harness.records.device_events import Event, covered_s
from harness.records.token_log import Bools, Floats, TokenLog

LOADING = "loading"  # the role of a slot that is held and does not serve yet
# What these kinds of events are called. The last ones are notes of KunServe's.
EPISODES = {
    "switch": "switch", "plan": "drop", "exchange": "exchange", "restore": "restore",
    "migration": "migration", "standby": "standby", "recover": "recover",
}  # fmt: skip
PARTS = {
    "restart": "engine", "collect": "engine",
    "load": "weights", "prefetch": "weights", "adopt": "weights",
    "kv_move": "KV", "swap_in": "KV",
}  # fmt: skip
LENT = "lent memory"  # leases, which hold no GPU


@dataclass(frozen=True, slots=True)
class Episode:
    """`parts` add up to its length: allocate, until something begins; engine, weights and KV, what
    was under way, the first of them where several were; rest. `first_batch_s`: from its end to the
    next batch's end there, or the next first token; None: there is none. `model`: whose requests
    alone it delays; None: anybody's."""

    kind: str
    start_s: float
    end_s: float
    model: str | None
    parts: dict[str, float]
    first_batch_s: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Scaling:
    """`roles`: spans (start, end, devices) by role. `used_gpu_s`: seconds in which batches occupied
    devices; None: not recorded. `stable_s`: from the beginning of each time of scaling to when all
    who waited meanwhile had a first token, inf: one never had. `late`: requests beyond the SLO's
    TTFT; `hurt`: those of them that waited while it scaled."""

    roles: dict[str, list[tuple[float, float, int]]]
    used_gpu_s: float | None
    episodes: list[Episode]
    stable_s: list[float]
    late: Bools
    hurt: Bools

    @property
    def held_gpu_s(self) -> dict[str, float]:
        """Seconds that devices were held, by role."""
        return {
            role: sum((end - start) * devices for start, end, devices in spans)
            for role, spans in self.roles.items()
            if role != LENT
        }


def scaling_of(
    requests: pa.Table, events: Iterable[Event], *, ttft_s: float, num_devices: float,
    num_instances: int | None = None,
) -> Scaling | None:  # fmt: skip
    """`ttft_s`: the SLO's. `num_devices`: of the run, over which pooled instances are spread;
    `num_instances`: how many these are; None: those that ran a batch. None: the run has no slots
    that are held, no leases and no switches."""
    log, kept = TokenLog.from_table(requests), sorted(events, key=lambda each: each["start_s"])
    ran = [each for each in kept if each["kind"] == "run"]
    roles = _roles(kept) or _phases(ran, log, num_devices, num_instances)
    episodes = _episodes(kept, _ends_of_batches(ran, requests, log))
    if not roles and not episodes:
        return None
    waits = log.arrival_s, np.where(log.started, log.first_s, np.inf)
    late = waits[1] - waits[0] > ttft_s + GRACE_S
    models = np.array(log.models, dtype=object)[log.of_model]
    hurt = np.zeros(len(log), bool)
    for model in {each.model for each in episodes}:
        spans = merged((each.start_s, each.end_s) for each in episodes if each.model == model)
        hurt |= _overlaps(*waits, spans) & ((models == model) | (model is None))
    stable_s = []
    for start_s, end_s in merged((each.start_s, each.end_s) for each in episodes):
        waited = (waits[0] < end_s) & (waits[1] > start_s)
        stable_s.append(float(waits[1][waited].max(initial=end_s)) - start_s)
    slots = [each["fields"] for each in kept if "occupied_s" in each["fields"]]
    used = [slot["occupied_s"] * slot["num_devices"] for slot in slots]
    gpus = num_devices / max(sum(map(len, roles.values())), 1)  # of a pooled instance
    used += [(each["end_s"] - each["start_s"]) * gpus for each in ran]
    return Scaling(roles, sum(used) if used else None, episodes, stable_s, late, late & hurt)


def merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The union of `spans` as disjoint ones, in order."""
    found: list[tuple[float, float]] = []
    for start_s, end_s in sorted(spans):
        if found and start_s <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end_s)
        else:
            found.append((start_s, end_s))
    return found


def _overlaps(from_s: Floats, to_s: Floats, spans: Sequence[tuple[float, float]]) -> Bools:
    """Which of the waits overlap one of the disjoint `spans`."""
    starts, ends = np.array(spans, np.float64).reshape(-1, 2).T
    ended = np.searchsorted(ends, from_s, side="right")
    found: Bools = ended < np.searchsorted(starts, to_s, side="left")
    return found


def _roles(events: Sequence[Event]) -> dict[str, list[tuple[float, float, int]]]:
    found: defaultdict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for each in events:
        if each["kind"] in ("slot", "lease"):
            role = each["fields"].get("role", LENT)
            devices = each["fields"].get("num_devices", 1)
            found[role].append((each["start_s"], each["end_s"], devices))
    return dict(found)


def _phases(
    ran: Sequence[Event], log: TokenLog, num_devices: float, num_instances: int | None
) -> dict[str, list[tuple[float, float, int]]]:
    """Instances that nobody takes or releases, by the phases of their batches."""
    phases: defaultdict[str, set[str]] = defaultdict(set)
    for each in ran:
        phases[each["instance"]].add(each["fields"]["phase"])
    found: defaultdict[str, list[tuple[float, float, int]]] = defaultdict(list)
    start_s = float(log.arrival_s.min())
    many = len(phases) if num_instances is None else num_instances
    roles = [" and ".join(sorted(each)) for each in phases.values()]
    for role in [*roles, *["idle"] * (many - len(phases) if phases else 0)]:
        found[role].append((start_s, start_s + log.duration_s, round(num_devices / many)))
    return dict(found)


def _ends_of_batches(
    ran: Sequence[Event], requests: pa.Table, log: TokenLog
) -> dict[str, list[float]]:
    """When batches of each instance ended, or gave first tokens, in order."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for each in ran:
        found[each["instance"]].append(each["end_s"])
    if not ran:
        for name, first_s in zip(requests["instance"].to_pylist(), log.first_s, strict=True):
            if np.isfinite(first_s):
                found[name].append(float(first_s))
    return {name: sorted(times) for name, times in found.items()}


def _episodes(events: Sequence[Event], batches: Mapping[str, Sequence[float]]) -> list[Episode]:
    parts = [each for each in events if _part(each) is not None]
    parts.sort(key=lambda each: str(each["instance"]))
    of_instance = {
        name: _Timed([*mine]) for name, mine in groupby(parts, key=lambda each: each["instance"])
    }
    found = []
    for each in events:
        loading = each["kind"] == "slot" and each["fields"]["role"] == LOADING
        if not (loading or each["kind"] in EPISODES):
            continue
        name, start_s, end_s = each["instance"], each["start_s"], each["end_s"]
        model = each["fields"].get("model")
        own = [
            one
            for member in name.split("+")
            if member in of_instance
            for one in of_instance[member].within(start_s, end_s)
            if model is None or one["fields"].get("model", model) == model
        ]
        times = batches.get(name, [])
        after = bisect_left(times, end_s)
        found.append(
            Episode(
                kind="start" if loading else EPISODES[each["kind"]],
                start_s=start_s,
                end_s=end_s,
                model=model,
                parts=_split(start_s, end_s, own),
                first_batch_s=times[after] - end_s if after < len(times) else None,
            )
        )
    return found


def _part(event: Event) -> str | None:
    if event["kind"] == "transfer":
        return "weights" if event["fields"]["purpose"] == "weights" else "KV"
    return PARTS.get(event["kind"])


class _Timed:
    """Events of one instance by their start."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events
        self._starts = [each["start_s"] for each in events]
        self._longest_s = max(each["end_s"] - each["start_s"] for each in events)

    def within(self, start_s: float, end_s: float) -> list[Event]:
        """Those of which some lies between."""
        first = bisect_left(self._starts, start_s - self._longest_s)
        last = bisect_left(self._starts, end_s)
        return [each for each in self._events[first:last] if each["end_s"] > start_s]


def _split(start_s: float, end_s: float, own: Sequence[Event]) -> dict[str, float]:
    clipped: defaultdict[str, list[Event]] = defaultdict(list)
    for each in own:
        inside: Event = {
            "start_s": max(each["start_s"], start_s),
            "end_s": min(each["end_s"], end_s),
        }
        clipped[str(_part(each))].append(inside)
    begun_s = min((one["start_s"] for of in clipped.values() for one in of), default=start_s)
    found, seen, before_s = {"allocate": begun_s - start_s}, list[Event](), 0.0
    for part in ("engine", "weights", "KV"):
        seen += clipped[part]
        together_s = covered_s(seen)
        found[part], before_s = together_s - before_s, together_s
    return found | {"rest": end_s - begun_s - before_s}
