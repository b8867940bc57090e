"""How long each batch of a round decodes: equations 2 and 3 of §4.3. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Quotas:
    """The result of eq. 2 and 3 for one round."""

    alpha: float  # eq. 3: every batch meets min(1, 1/alpha) of its deadlines in this round
    turns_s: list[float]  # eq. 2: q_i of each batch


def quotas(
    step_s: Sequence[float],
    *,
    switching_s: float,
    tbt_s: float,
    max_quota_s: float,
    min_alpha: float,
) -> Quotas:
    """The quota of each batch, given its step times t_k in seconds.

    switching_s: c, the sum of the switching times of the round's models; above 0. tbt_s: d.
    max_quota_s: Q_MAX. With n_k = d/t_k, batch i generates in its turn tokens for n_i·q_i seconds
    of deadlines. Eq. 2 makes n_i·q_i = c/(α - Σ1/n), equal for all batches, which is the round's
    time (c + Σq) divided by α. Eq. 3 takes the least α whose longest quota is at most Q_MAX, and at
    least min_alpha (0.5), so that turns stay short if deadlines are easily met.
    """
    n = [tbt_s / t for t in step_s]
    busy = sum(1 / n_k for n_k in n)
    alpha = max(switching_s / (min(n) * max_quota_s) + busy, min_alpha)
    return Quotas(alpha, [switching_s / (n_i * (alpha - busy)) for n_i in n])
