"""Whether our value bears a claim out: rule 3, the same for every claim.

Our value is the mean over seeds, with the 95 % interval of Student's t. Where two systems are
compared, their ratio is taken seed by seed, on the same schedule. A simulated value needs five
seeds, a live one three; a value that nothing random enters needs one.

reproduced      the whole interval lies within the claim's tolerance: around the published value
                ("about", "up to"), above it ("at least") or below it ("at most"). A range has two
                ends: one value of ours must lie between them, or each end has a value of its own
                and both must be reproduced. The tolerance of a share is relative to its small
                side, min(share, 1 - share), and, but for a bound, at least half of the last
                printed digit. The tolerance of a ratio of two systems is relative to the ratio or
                to its effect, |ratio - 1|, whichever is less: 15 % of 1.2 x is 0.03. Where two
                systems are compared, a value that is to be near the published one must also be on
                its side of "no effect"
trend only      the whole interval is on the claim's side of "no effect" (a ratio of 1, a saving of
                0), and the effect is at least half of the published one, and at most twice it (of a
                range, twice the stronger end). Of a ratio the effect is
                (ours - 1) / (published - 1), or log(ours) / log(published) where the published
                ratio is above 3 or below 1/3. Of a saving it is ours / published
weak            the same side, and no more: less than half of the published effect, or more than
                twice it
not reproduced  none of these
by construction it would be reproduced, but no run could have shown otherwise: it is the paper's own
                arithmetic, or follows from what we put in. It is no evidence, and not in the share.
                Runs on a GPU are judged as all others
not exercised   the comparison cannot tell: both sides, or both ends of a range, are equal to the
                last digit, or the mechanism that the claim is about ran in no seed
not attempted   we cannot compute it here; its runs are missing or INVALID; there are too few
                seeds; or the value is undefined: 0/0, or a curve whose end was not found, unless
                the tested part of the curve already decides
setting         the paper's setup, or a fact about other work: there is nothing to reproduce
repeated        the paper says it again: judged once, in the row that is named

A claim with a condition that another claim states ("at the same SLO") is not reproduced where that
one is not. Of several readings of one sentence all are shown, and the worst is counted.
Of several candidates ("up to", "the most of") one is chosen for all seeds, by the mean over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from harness.claims.expressions import Beyond
from harness.claims.ledger import Claim
from harness.records.interval import interval

RULE = 3
MIN_SEEDS = {"simulated": 5, "live": 3}
VERDICTS = (
    "reproduced", "trend only", "weak", "not reproduced", "by construction", "not exercised",
    "not attempted", "setting", "repeated",
)  # fmt: skip
JUDGED = VERDICTS[:4]
HALF, TWICE = 0.5, 2.0  # of the published effect: less, or more, is weak
LOG_ABOVE = 3.0  # published ratios beyond it are compared by their logarithms
NO_EFFECT = {"ratio": 1.0, "saving": 0.0}


@dataclass(slots=True)
class Ours:
    mean: float
    low: float  # of the 95 % interval of the mean over seeds
    high: float
    num_seeds: int
    beyond: bool = False  # some seed's value is at least what stands here
    num_undefined: int = 0  # seeds without a value

    @property
    def defined(self) -> bool:
        return self.num_undefined == 0


@dataclass(slots=True)
class Finding:
    verdict: str
    effect: float | None = None  # share of the published effect; None: the claim compares nothing
    why: str = ""  # of what is not attempted


def estimate(values: Sequence[float]) -> Ours:
    """The mean of one value a seed, at least one, and its interval. Of values beyond what was tried
    the least is all that is known: it stands for all three."""
    undefined = sum(not math.isfinite(value) for value in values)
    if undefined:
        return Ours(math.nan, math.nan, math.nan, len(values), num_undefined=undefined)
    if any(isinstance(value, Beyond) for value in values):
        least = float(min(values))
        return Ours(least, least, math.inf, len(values), beyond=True)
    found = interval([float(value) for value in values])
    half = found.half or 0.0
    return Ours(found.mean, found.mean - half, found.mean + half, found.count)


def judge(claim: Claim, ours: Sequence[Ours], min_seeds: int) -> Finding:
    """`ours`: one value, or of a range one for each end. `min_seeds`: fewer are no attempt."""
    if len(ours) == 2:
        ends = zip(ours, claim.ends, strict=True)
        found = [_judge(claim, each, (end,), min_seeds) for each, end in ends]
        effects = [each.effect for each in found if each.effect is not None]
        worst = max(found, key=lambda each: VERDICTS.index(each.verdict))
        return Finding(worst.verdict, min(effects, default=None), worst.why)
    (one,) = ours
    return _judge(claim, one, claim.ends, min_seeds)


def _judge(claim: Claim, ours: Ours, published: Sequence[float], min_seeds: int) -> Finding:
    if not ours.defined:
        why = f"undefined for {ours.num_undefined} of {ours.num_seeds} seeds"
        return Finding("not attempted", why=why)
    if ours.num_seeds < min_seeds:
        return Finding("not attempted", why=f"{ours.num_seeds} of {min_seeds} seeds")
    low, high = bounds(claim, published)
    effect = effect_share(claim, ours.mean, published)
    against = effect is not None and not _on_side(claim, ours, published)
    within = ours.low >= low and (ours.high <= high or high == math.inf)
    if within and not (against and claim.relation in ("about", "up_to")):
        return Finding("reproduced", effect)
    if ours.beyond and not ours.low > high:
        return Finding("not attempted", effect, "the curve's end was not found")
    if effect is None or against:
        return Finding("not reproduced", effect)
    fitting = effect >= HALF and not _overshoots(claim, ours.mean)
    return Finding("trend only" if fitting else "weak", effect)


def as_evidence(claim: Claim, found: Finding, rests_on: str) -> Finding:
    """What holds by construction here is no evidence. `rests_on`: a kind of harness.claims.kinds;
    runs on a GPU have put nothing in."""
    fixed = claim.by_construction and rests_on != "live, GPU"
    if fixed and found.verdict == "reproduced":
        return Finding("by construction", found.effect)
    return found


def bounds(claim: Claim, published: Sequence[float]) -> tuple[float, float]:
    """The ends of where the whole interval must lie. `published`: a value, or a range's ends."""
    low, high = (end + sign * _slack(claim, end) for end, sign in _signed(published))
    if claim.relation == "at_least":
        return low, math.inf
    if claim.relation == "at_most":
        return -math.inf, high
    return low, high


def _signed(published: Sequence[float]) -> tuple[tuple[float, int], tuple[float, int]]:
    return (published[0], -1), (published[-1], 1)


def _slack(claim: Claim, published: float) -> float:
    whole = {"": 1.0, "%": 100.0}.get(claim.unit)
    if whole is None or not 0 <= published <= whole:
        side = abs(published - 1) if claim.effect == "ratio" else math.inf
        return claim.tolerance * min(abs(published), side) + 1e-12
    printed = 0.0 if claim.relation in ("at_least", "at_most") else _half_digit(published, whole)
    small = min(published, whole - published)
    return max(claim.tolerance * small, printed) + 1e-12


def _half_digit(published: float, whole: float) -> float:
    """Half of the last digit of a share as printed, at least of a hundredth of the whole."""
    exponent = Decimal(repr(float(published))).normalize().as_tuple().exponent
    assert isinstance(exponent, int)
    return 0.5 * min(10.0**exponent, whole / 100)


def effect_share(claim: Claim, ours: float, published: Sequence[float]) -> float | None:
    """Our effect over the published one, of a range that one value stands for its middle. None
    where the claim compares nothing, or says that there is no effect."""
    if claim.effect is None:
        return None
    none, middle = NO_EFFECT[claim.effect], sum(published) / len(published)
    if middle == none:
        return None
    if claim.effect == "ratio" and not 1 / LOG_ABOVE <= middle <= LOG_ABOVE:
        return math.log(ours) / math.log(middle) if ours > 0 else -math.inf
    return (ours - none) / (middle - none)


def _overshoots(claim: Claim, ours: float) -> bool:
    """Whether our effect is more than twice the published one, of a range at both ends."""
    shares = [effect_share(claim, ours, [end]) for end in claim.ends]
    return all(share is not None and share > TWICE for share in shares)


def _on_side(claim: Claim, ours: Ours, published: Sequence[float]) -> bool:
    assert claim.effect is not None
    none = NO_EFFECT[claim.effect]
    return ours.low > none if sum(published) / len(published) > none else ours.high < none
