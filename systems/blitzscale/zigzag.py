"""Who runs which layers next while an instance loads (§5.2): the rules of the two instances.

The source is the overloaded instance, the target the new one. All batches stand in one queue at
the target, first come first served, with the number of layers that the target has run of each. The
target runs a layer at a time, of the first batch whose next layer is loaded, and puts it back (the
zigzag); the source takes the first batch over for good when it is free. Fig. 16's listing is lost
in our text; the rules are reconstructed from the prose around it, which names its lines 3 and 5.

The paper leaves out the time that activations take from one to the other (`hop_s`): with 0 these
are its rules. Where it is not 0, the target runs no layer of the first batch that would only come
to the source when that could have done it itself, so that throughput never falls below the
source's alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar


@dataclass(slots=True)
class Queued:
    """A batch that the source has not taken."""

    number: int  # the order of arrival
    executed: int = 0  # layers, by the target
    limit: int | None = None  # of `executed`; None: what there is time for (ILP-free)


Q = TypeVar("Q", bound=Queued)


def left_to_source(
    queue: Sequence[Q], now_s: float, hop_s: float, source_free_s: float
) -> Q | None:
    """The first batch, where another layer of it on the target would only make it later: the
    source is free at `source_free_s`, at or before activations sent `now_s` are there. There is
    none without a hop, nor where the first batch has a limit: that was chosen knowing its hop."""
    if not queue or queue[0].limit is not None:
        return None
    return queue[0] if now_s + hop_s > max(now_s, source_free_s) else None


def target_next(queue: Sequence[Q], loaded: int, left: Q | None = None) -> Q | None:
    """The batch of which the target runs the next layer, `loaded` layers being there; not `left`.
    None: it waits for a layer or a batch."""
    for batch in queue:
        if batch is left:
            continue
        if batch.executed < loaded and (batch.limit is None or batch.executed < batch.limit):
            return batch
    return None


def source_next(
    queue: Sequence[Q], running: Q | None, loaded: int, num_layers: int, *, hops: bool = False
) -> Q | None:
    """The batch that the source, being free, takes over. None: it waits.

    It takes the first one that is not the target's as a whole. That waits for its layers on the
    target: for all of `limit`; without a limit for the layer that is `running` on it, and for its
    first one where the target is about to run it; if activations take time (`hops`), it takes that
    one whole.
    """
    for batch in queue:
        if batch.limit == num_layers:
            continue
        if batch is running:
            return None
        if batch.limit is not None:
            return batch if batch.executed >= batch.limit else None
        about_to_start = batch.executed == 0 and running is None and loaded > 0 and not hops
        return None if about_to_start else batch
    return None
