"""One random stream for each purpose, so that changing one draw leaves all others as they were."""

from __future__ import annotations

import numpy as np


def stream(seed: int, purpose: str) -> np.random.Generator:
    """A function of both arguments alone. `seed` ≥ 0."""
    return np.random.default_rng([seed, *purpose.encode()])
