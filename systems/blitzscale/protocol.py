"""The three steps from an overloaded and a loading instance to two equal ones (§5.2)."""

from __future__ import annotations

from enum import Enum


class Step(Enum):
    """The step of a live pair. In each, waiting and new requests are in the target's queue."""

    REDIRECT = 1  # no layer is there: the source takes whole batches from that queue
    COOPERATE = 2  # from the first layer on: batches begin on the target (`zigzag`)
    REDISTRIBUTE = 3  # all layers are there: requests are divided and the pair ends


def step(loaded: int, num_layers: int) -> Step:
    """The step with `loaded` of `num_layers` layers at the target."""
    if loaded == 0:
        return Step.REDIRECT
    return Step.COOPERATE if loaded < num_layers else Step.REDISTRIBUTE
