"""Which models a cluster hosts (section 9.3): 10 % audio, 15 % vision, the rest LLMs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from systems.aqua.placer.assignment import ModelType


class Modality(NamedTuple):
    """A kind of model: audio, vision or LLM."""

    share: float  # of the models drawn
    types: tuple[ModelType, ...]


def draw(
    modalities: Sequence[Modality], num_gpus: int, rng: np.random.Generator
) -> list[ModelType]:
    """Draws models until every GPU has one.

    The paper does not say how it rounds its shares. Here each model's modality is drawn by the
    shares, and its type evenly from the types that fit on the GPUs that are left. Raises ValueError
    if no type fits.
    """
    drawn: list[ModelType] = []
    left = num_gpus
    while left:
        fitting = [
            Modality(each.share, tuple(t for t in each.types if t.shards <= left))
            for each in modalities
        ]
        fitting = [each for each in fitting if each.types and each.share > 0]
        if not fitting:
            raise ValueError(f"no model has room on the last {left} GPUs")
        shares = np.array([each.share for each in fitting])
        modality = fitting[rng.choice(len(fitting), p=shares / shares.sum())]
        drawn.append(modality.types[rng.integers(len(modality.types))])
        left -= drawn[-1].shards
    return drawn
