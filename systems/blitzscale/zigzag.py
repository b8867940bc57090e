"""Which instance runs which layers next while one of the two loads (§5.2).

The source is the overloaded instance, the target the new one. All batches are in one queue at the
target, first come first served, with the number of layers that the target has run of each. The
target runs one layer of the first batch whose next layer is loaded, and puts the batch back: the
zigzag. When the source is free, it takes over the first batch to its end. Fig. 16's listing is
missing in our text; the rules are reconstructed from the prose around it, which names its lines 3
and 5.

The paper leaves out the time that activations take between the two (`hop_s`); with 0 these are the
paper's rules. With more, the target runs no layer of the first batch whose activations would arrive
only when the source could have run that layer itself. So throughput never falls below that of the
source alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar


class Step(Enum):
    """The three steps from an overloaded and a loading instance to two equal ones. In each, waiting
    and new requests are in the target's queue."""

    REDIRECT = 1  # no layer is there: the source takes whole batches from that queue
    COOPERATE = 2  # from the first layer on: batches begin on the target
    REDISTRIBUTE = 3  # all layers are there: requests are divided and the pair ends


def step(loaded: int, num_layers: int) -> Step:
    """The step with `loaded` of `num_layers` layers at the target."""
    if loaded == 0:
        return Step.REDIRECT
    return Step.COOPERATE if loaded < num_layers else Step.REDISTRIBUTE


@dataclass(slots=True, eq=False)
class Queued:
    """A batch that the source has not taken."""

    layer_s: float  # time of a layer
    hop_s: float  # time of its activations to the source
    executed: int = 0  # layers that the target has run
    limit: int | None = None  # the largest `executed`; None: what time allows (ILP-free)


Q = TypeVar("Q", bound=Queued)


def left_to_source(queue: Sequence[Q], now_s: float, source_free_s: float) -> Q | None:
    """The first batch, if another layer of it on the target would only make it later; else None.

    That is so if the source is free (`source_free_s`) before activations sent at `now_s` arrive.
    None if activations take no time. None also if the batch has a limit, which was chosen with
    `hop_s` in mind.
    """
    if not queue or queue[0].limit is not None:
        return None
    return queue[0] if now_s + queue[0].hop_s > max(now_s, source_free_s) else None


def target_next(queue: Sequence[Q], loaded: int, left: Q | None = None) -> Q | None:
    """The batch of which the target runs the next layer; None: it waits for a layer or a batch.

    loaded: layers at the target. left: the batch that is left to the source.
    """
    for batch in queue:
        if batch is left:
            continue
        if batch.executed < loaded and (batch.limit is None or batch.executed < batch.limit):
            return batch
    return None


def source_next(
    queue: Sequence[Q], running: Q | None, loaded: int, num_layers: int, *, hops: bool = False
) -> Q | None:
    """The batch that the source takes over when it is free; None: it waits.

    It takes the first batch that the target does not run as a whole. Before, it waits for the
    batch's layers on the target. With a limit: until `limit` layers are run. Without: until the
    layer that is `running` there has ended. If the target is about to run the batch's first layer,
    the source waits for it too; with `hops` (activations take time) it takes the whole batch.
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
