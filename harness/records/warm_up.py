"""Where a run's warm-up ends: MSER-5, on a series of values in the order of arrival.

The marginal standard error rule (White, "An effective truncation heuristic for bias reduction in
simulation output", SIMULATION 69(6), 1997) leaves out the first values such that the mean of the
others is the surest, and at most half of all. MSER-5 (White, Cobb and Spratt, "A comparison of five
steady-state truncation heuristics for simulation", WSC 2000) takes means of five values each. Knows
nothing of requests. Pure functions.
"""

from __future__ import annotations

import numpy as np

from harness.records.token_log import Floats

BATCH = 5  # values of one mean
MIN_VALUES = 50  # ten means: fewer agree by chance


def mser(means: Floats) -> Floats:
    """MSER(d) = sum over i >= d of (y_i - their mean)^2 / (n - d)^2, for d = 0, 1, … ⌊n/2⌋ of n
    `means`."""
    centred = means - means.mean()
    left = np.arange(len(means), 0, -1, dtype=np.float64)
    sums = np.cumsum(centred[::-1])[::-1]
    squares = np.cumsum(centred[::-1] ** 2)[::-1]
    found: Floats = np.maximum(squares - sums**2 / left, 0.0) / left**2
    return found[: len(means) // 2 + 1]


def warm_up_values(values: Floats) -> int | None:
    """How many of the first `values` are warm-up, a multiple of BATCH; None: it was not over in
    their first half, or there are fewer than MIN_VALUES.

    Values that do not fill a last batch are not looked at.
    """
    if len(values) < MIN_VALUES:
        return None
    means = values[: len(values) // BATCH * BATCH].reshape(-1, BATCH).mean(axis=1)
    found = mser(means)
    rounding = (1e-12 * float(np.abs(means).max())) ** 2  # equal values differ by as much
    first = int(np.argmax(found <= found.min() + rounding))
    return first * BATCH if first < len(means) // 2 else None
