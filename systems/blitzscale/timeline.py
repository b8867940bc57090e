"""The timeline of a live pair: when each batch ends under the rules of `zigzag` (Fig. 15).

Arithmetic over predicted times, to compare and replay plans. A running pair (`live`) decides by the
same rules. Times are in seconds from the moment of planning. The paper leaves out the time of
activations; here it is `hop_s`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from systems.blitzscale.zigzag import Queued, left_to_source, source_next, target_next


@dataclass(kw_only=True, slots=True, frozen=True)
class PairTimes:
    """An overloaded instance (source), one that loads (target), and the batches that wait."""

    num_layers: int
    layer_s: tuple[float, ...]  # time of a layer, for each batch: §5.4 weighs it by its tokens
    ready_s: tuple[float, ...]  # when each layer is at the target; they arrive in order
    source_free_s: float = 0.0  # when the source ends its present batch
    hop_s: tuple[float, ...] = ()  # time of each batch's activations to the source; empty: 0

    def loaded(self, now_s: float) -> int:
        """How many layers are at the target."""
        return sum(ready_s <= now_s for ready_s in self.ready_s)


@dataclass(slots=True, frozen=True)
class Run:
    """Layers [first, end) of a batch, run on one of the two instances without a break."""

    on_target: bool
    batch: int
    first: int
    end: int
    start_s: float
    end_s: float


@dataclass(slots=True)
class Timeline:
    """What a replay gives."""

    ends_s: list[float]  # when each batch ends
    on_target: list[int]  # T: how many layers of each batch the target ran
    runs: list[Run] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Batch(Queued):
    """A batch of the replay."""

    number: int = field(kw_only=True)
    done_s: float = 0.0  # when the target ended its last layer of it


def replay(times: PairTimes, limits: Sequence[int | None]) -> Timeline:
    """The timeline if the target runs at most `limits[i]` layers of batch i (None: ILP-free).

    A batch's activations are sent to the source when the target has run its last layer of it.
    """
    layers, hops = times.num_layers, any(times.hop_s)
    queue = [
        _Batch(times.layer_s[i], times.hop_s[i] if times.hop_s else 0.0, limit=limit, number=i)
        for i, limit in enumerate(limits)
    ]
    found = Timeline([inf] * len(queue), [0] * len(queue))
    now_s, source_free_s, target_free_s = 0.0, times.source_free_s, 0.0
    running: _Batch | None = None
    while True:
        loaded = times.loaded(now_s)
        if running is not None and target_free_s <= now_s:
            running.executed += 1
            running.done_s = now_s
            if running.executed == layers:
                queue.remove(running)
                found.ends_s[running.number] = now_s
            running = None
        if source_free_s <= now_s:
            taken = source_next(queue, running, loaded, layers, hops=hops)
            if taken is not None:
                queue.remove(taken)
                number, first = taken.number, taken.executed
                start_s = max(now_s, taken.done_s + taken.hop_s) if first else now_s
                source_free_s = start_s + (layers - first) * taken.layer_s
                found.ends_s[number], found.on_target[number] = source_free_s, first
                found.runs.append(Run(False, number, first, layers, start_s, source_free_s))
        if running is None:
            left = left_to_source(queue, now_s, source_free_s)
            running = target_next(queue, loaded, left)
            if running is not None:
                number, first = running.number, running.executed
                target_free_s = now_s + running.layer_s
                found.on_target[number] = first + 1
                found.runs.append(Run(True, number, first, first + 1, now_s, target_free_s))
        if inf not in found.ends_s:
            return found
        # The next time at which something can change.
        ahead = [s for s in (source_free_s, target_free_s, *times.ready_s) if s > now_s]
        if not ahead:
            raise ValueError("neither instance can go on: the limits cannot be kept")
        now_s = min(ahead)
