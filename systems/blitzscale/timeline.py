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
class Pair:
    """An overloaded instance (source), one that loads (target), and the batches that wait.

    Raises ValueError if the lengths of the fields do not fit, or if layers are out of order.
    """

    num_layers: int
    layer_s: tuple[float, ...]  # time of a layer, for each batch: §5.4 weighs it by its tokens
    ready_s: tuple[float, ...]  # when each layer is at the target
    source_free_s: float = 0.0  # when the source ends its present batch
    hop_s: tuple[float, ...] = ()  # time of each batch's activations to the source; empty: 0

    def __post_init__(self) -> None:
        if self.hop_s and len(self.hop_s) != len(self.layer_s):
            raise ValueError(f"{len(self.hop_s)} hops for {len(self.layer_s)} batches")
        if len(self.ready_s) != self.num_layers:
            raise ValueError(f"{len(self.ready_s)} times for {self.num_layers} layers")
        if list(self.ready_s) != sorted(self.ready_s):
            raise ValueError("ready_s must ascend: layers arrive in order")

    def hop(self, batch: int) -> float:
        """Seconds of the batch's activations to the source."""
        return self.hop_s[batch] if self.hop_s else 0.0

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


def replay(pair: Pair, limits: Sequence[int | None]) -> Timeline:
    """The timeline of `pair` if the target runs at most `limits[i]` layers of batch i (None:
    ILP-free).

    A batch's activations are sent to the source when the target has run its last layer of it.
    """
    count = len(pair.layer_s)
    queue = [Queued(i, limit=limit) for i, limit in enumerate(limits)]
    found = Timeline([inf] * count, [0] * count)
    hops = any(pair.hop_s)
    done_s = [0.0] * count  # when the target ended its last layer of each batch
    now_s, source_free_s, target_free_s = 0.0, pair.source_free_s, 0.0
    running: Queued | None = None
    while True:
        loaded = pair.loaded(now_s)
        if running is not None and target_free_s <= now_s:
            running.executed += 1
            done_s[running.number] = now_s
            if running.executed == pair.num_layers:
                queue.remove(running)
                found.ends_s[running.number] = now_s
            running = None
        if source_free_s <= now_s:
            taken = source_next(queue, running, loaded, pair.num_layers, hops=hops)
            if taken is not None:
                queue.remove(taken)
                number, first = taken.number, taken.executed
                start_s = now_s
                if first:
                    start_s = max(now_s, done_s[number] + pair.hop(number))
                source_free_s = start_s + (pair.num_layers - first) * pair.layer_s[number]
                found.ends_s[number], found.on_target[number] = source_free_s, first
                run = Run(False, number, first, pair.num_layers, start_s, source_free_s)
                found.runs.append(run)
        if running is None:
            hop_s = pair.hop(queue[0].number) if queue else 0.0
            left = left_to_source(queue, now_s, hop_s, source_free_s)
            running = target_next(queue, loaded, left)
            if running is not None:
                number, first = running.number, running.executed
                target_free_s = now_s + pair.layer_s[number]
                found.on_target[number] = first + 1
                found.runs.append(Run(True, number, first, first + 1, now_s, target_free_s))
        if inf not in found.ends_s:
            return found
        now_s = _next_s(pair, now_s, source_free_s, target_free_s)


def _next_s(pair: Pair, now_s: float, *free_s: float) -> float:
    """The next time at which something can change. Raises ValueError if there is none: the limits
    cannot be kept."""
    ahead = [each for each in (*free_s, *pair.ready_s) if each > now_s]
    if not ahead:
        raise ValueError("neither instance can go on")
    return min(ahead)
