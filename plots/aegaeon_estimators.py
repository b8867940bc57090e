"""R² of appendix A.2's equations on measured latencies, for the table of the paper's numbers.

A (model, device, TP) pair has its own constants, by ordinary least squares: the equations say
nothing of their signs. The hidden and FFN sizes are the same in all cells of a pair, so they go
into the constants.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.calibrate.profiles import Cells, Floats
from systems.aegaeon.estimate import r_squared

SCOPES = {"every pair": (1, 2, 4), "TP 1": (1,)}


def lowest(pairs: Sequence[Cells]) -> dict[str, float]:
    """The lowest R² of each equation, over all pairs and over those of one GPU."""
    found = [(cells.tp, explained(cells)) for cells in pairs]
    return {
        f"R2 of {equation}, lowest of {scope}": min(
            fits[equation] for tp, fits in found if tp in degrees
        )
        for equation in found[0][1]
        for scope, degrees in SCOPES.items()
    }


def explained(cells: Cells) -> dict[str, float]:
    """R² of each equation over the cells of one pair."""
    one = np.ones_like(cells.batch)
    squares = cells.batch * cells.input_len**2  # t2
    printed = [one, cells.context_tokens]
    return {
        "eq. 5 (prefill)": _fitted([cells.tokens, squares, one], cells.prefill_s),
        "eq. 6 (decode)": _fitted(printed, cells.decode_s),
        "eq. 6 and C6 B (decode)": _fitted([*printed, cells.batch], cells.decode_s),
    }


def _fitted(terms: Sequence[Floats], times_s: Floats) -> float:
    scaled = np.array([term / term.max() for term in terms]).T  # they differ by orders of magnitude
    constants = np.linalg.lstsq(scaled, times_s, rcond=None)[0]
    return r_squared(times_s, scaled @ constants)
