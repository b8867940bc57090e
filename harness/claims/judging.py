"""Whether our value bears a claim out: one rule for all.

reproduced      our mean satisfies the claim (about, at least or at most the published value)
                within its tolerance. If a curve never leaves the tested range, we use the end
                of that range, and only for "at least"
trend only      our mean does not, but the whole 95 % confidence interval is on the side of the
                claim's `trend` (for example, a ratio above 1)
not reproduced  neither of the two
no result       a setting of the paper (its testbed, its rates) or a fact about other work: there
                is nothing to reproduce
not attempted   we cannot compute it here, or its runs are missing or INVALID, or there are fewer
                than three seeds of something that is drawn at random
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.claims.expressions import Beyond
from harness.claims.ledger import Claim

MIN_SEEDS = 3
RESAMPLES = 10_000


@dataclass(slots=True)
class Ours:
    mean: float
    low: float  # of the 95 % bootstrap interval of the mean over seeds
    high: float
    num_seeds: int
    beyond: bool = False  # some seed's value is at least what stands here


def estimate(values: Sequence[float]) -> Ours:
    """The mean of one value a seed, at least one, and its interval (percentile bootstrap; with a
    few seeds it is hardly wider than their range)."""
    sample = np.asarray(values, float)
    beyond = any(isinstance(value, Beyond) for value in values)
    if len(sample) == 1 or not np.isfinite(sample).all():
        ends = float(sample.min()), float(sample.max())
        return Ours(float(sample.mean()), *ends, len(sample), beyond)
    drawn = np.random.default_rng(0).choice(sample, (RESAMPLES, len(sample))).mean(axis=1)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return Ours(float(sample.mean()), float(low), float(high), len(sample), beyond)


def judge(claim: Claim, ours: Ours) -> str:
    if ours.num_seeds < MIN_SEEDS and not claim.exact:
        return "not attempted"
    if _meets(claim, ours):
        return "reproduced"
    if claim.trend is not None and ours.low > claim.trend:
        return "trend only"
    if claim.trend_below is not None and ours.high < claim.trend_below and not ours.beyond:
        return "trend only"
    return "not reproduced"


def _meets(claim: Claim, ours: Ours) -> bool:
    slack = claim.tolerance * abs(claim.published) + 1e-12
    if claim.relation == "at_least":
        return ours.mean >= claim.published - slack
    if ours.beyond:
        return False
    if claim.relation == "at_most":
        return ours.mean <= claim.published + slack
    return abs(ours.mean - claim.published) <= slack
