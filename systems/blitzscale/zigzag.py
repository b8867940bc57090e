"""Who runs which layers next while an instance loads (§5.2): the rules of the two instances.

The source is the overloaded instance, the target the new one. All batches stand in one queue at
the target, first come first served, with the number of layers that the target has run of each. The
target runs a layer at a time, of the first batch whose next layer is loaded, and puts it back (the
zigzag); the source takes the first batch over for good when it is free. Fig. 16's listing is lost
in our text; the rules are reconstructed from the prose around it, which names its lines 3 and 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Queued:
    """A batch that the source has not taken."""

    number: int  # the order of arrival
    executed: int = 0  # layers, by the target
    limit: int | None = None  # of `executed`; None: what there is time for (ILP-free)


def target_next(queue: Sequence[Queued], loaded: int) -> Queued | None:
    """The batch of which the target runs the next layer, `loaded` layers being there. None: it
    waits for a layer or a batch."""
    for batch in queue:
        if batch.executed < loaded and (batch.limit is None or batch.executed < batch.limit):
            return batch
    return None


def source_next(
    queue: Sequence[Queued], running: Queued | None, loaded: int, num_layers: int
) -> Queued | None:
    """The batch that the source, being free, takes over. None: it waits.

    It takes the first one that is not the target's as a whole. That waits for its layers on the
    target: for all of `limit`; without a limit for the layer that is `running` on it, and for its
    first one where the target is about to run it.
    """
    for batch in queue:
        if batch.limit == num_layers:
            continue
        if batch is running:
            return None
        if batch.limit is not None:
            return batch if batch.executed >= batch.limit else None
        about_to_start = batch.executed == 0 and running is None and loaded > 0
        return None if about_to_start else batch
    return None
