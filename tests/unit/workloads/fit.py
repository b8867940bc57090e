"""How the constants under `synthetic:` in conf/workload/*.yaml were fitted.

Run by test_synthetic.py."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from workloads.synthetic import LEVELS

Array = npt.NDArray[np.float64]


def quantiles(tokens: npt.NDArray[np.int64]) -> Array:
    return np.quantile(tokens, LEVELS)


def slot_rates(arrival_s: Array, slot_s: float) -> Array:
    """Requests per second in consecutive slots, to the last arrival; the last may be shorter."""
    edges_s = np.append(np.arange(0, arrival_s[-1], slot_s), arrival_s[-1])
    return np.histogram(arrival_s, edges_s)[0] / np.diff(edges_s)


def busy_shares(arrival_s: Array, slot_s: float) -> Array:
    """Share of the seconds of each slot, to the last arrival's, in which anything arrives."""
    busy = np.bincount(arrival_s.astype(int)) > 0
    slot = (np.arange(len(busy)) // slot_s).astype(int)
    return np.bincount(slot, busy) / np.bincount(slot)


def cv(arrival_s: Array, slot_s: float, bin_s: float) -> float:
    """The square root of the index of dispersion of counts in bins, with each slot's mean
    removed: a renewal process with this cv of its gaps tends to that index in long bins."""
    num_bins = int(arrival_s[-1] // bin_s)
    counts = np.bincount((arrival_s // bin_s).astype(int))[:num_bins].astype(float)
    slot = (np.arange(num_bins) * bin_s // slot_s).astype(int)
    mean = (np.bincount(slot, counts) / np.bincount(slot))[slot]
    return float(np.sqrt(((counts - mean) ** 2).sum() / mean.sum()))


def cv_from_tokens(tokens: Array, mean_tokens: float, length_cv: float) -> float:
    """The same from tokens per minute, a sum of N lengths: Var S = E[N] Var L + Var N E[L]².

    `tokens` has one row per day and one column per minute; each hour of day's mean is removed.
    """
    hourly = tokens.reshape(len(tokens), 24, 60)
    residual = hourly - hourly.mean(axis=(0, 2), keepdims=True)
    num = tokens.mean() / mean_tokens
    return float(np.sqrt((residual**2).mean() / mean_tokens**2 / num - length_cv**2))


def zipf_alpha(counts: npt.NDArray[np.int64]) -> float:
    """Maximum likelihood of a Zipf exponent for the ranked counts, on a grid of 0.01."""
    ranked = np.sort(counts)[::-1]
    log_rank = np.log(np.arange(1, len(ranked) + 1))
    grid = np.arange(0, 4, 0.01)
    likelihood = [
        -alpha * (ranked * log_rank).sum() - ranked.sum() * np.log(np.exp(-alpha * log_rank).sum())
        for alpha in grid
    ]
    return float(grid[int(np.argmax(likelihood))])
