"""When a producer lends and reclaims (sections 6 and 9.4): its informer's decision. Pure.

The serving engine reports its load. AQUA-LIB reclaims when the load rises, and offers again when it
is back at the steady state that the profiler found. The paper does not define "rises"; its engine
noticed a growing queue (Fig. 12). Here the load rises if the queue reaches `reclaim_at_pending`, or
if the rate exceeds the stable rate by more than `rate_margin`. It is steady if the queue is at most
`offer_at_pending` and the rate is within the margin. The queue's thresholds are the artifact's in
both variants. The artifact has no rate, and does not use the profile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from harness.configuration.checks import at_least, positive, require


@dataclass(kw_only=True)
class Informing:
    """The settings that both variants have."""

    min_offer_bytes: int  # smaller offers are not made
    rate_window_s: float  # window over which the engine counts arrivals
    every_iterations: int  # n: how often producers and consumers look, in iterations


@dataclass(kw_only=True)
class InformerVariant:
    """The settings in which the paper and its public code differ."""

    reclaim_at_pending: int  # queued requests, from which a producer reclaims
    offer_at_pending: int  # queued requests, up to which it offers
    rate_margin: float | None  # share of the stable rate; None: rates are not used
    every_s: float | None  # how often they look, in seconds; None: by iterations


@dataclass(kw_only=True)
class InformerConfig(Informing, InformerVariant):
    """All settings of the informer. Raises ValueError for values out of range."""

    def __post_init__(self) -> None:
        require(
            0 <= self.offer_at_pending < self.reclaim_at_pending,
            f"offer_at_pending={self.offer_at_pending} must be at least 0 and below "
            f"reclaim_at_pending={self.reclaim_at_pending}",
        )
        n = self.every_iterations
        require(n >= 1, f"every_iterations={n} (n) must be at least 1")
        positive(self, "", "every_s")
        at_least(self, 0, "", "rate_margin")


@dataclass(slots=True, frozen=True)
class Load:
    """What a producer's engine reports."""

    pending_requests: int
    rate_per_s: float
    free_bytes: int  # bytes of its own memory that are neither lent nor in use
    lent_bytes: int  # bytes that are offered and not yet reclaimed
    reclaiming: bool = False  # an earlier reclaim is not done
    stuck: bool = False  # a request waits and none runs, or there is no borrower any more


class Offer(NamedTuple):
    """Lends some bytes more."""

    num_bytes: int


class Reclaim(NamedTuple):
    """Takes back all that is lent."""


def decide(
    load: Load, config: InformerConfig, *, stable_rate_per_s: float, profiled_free_bytes: int
) -> Offer | Reclaim | None:
    """Decides what the producer asks of the coordinator now; None: nothing.

    An offer is at most what is free. All offers together are at most `profiled_free_bytes`, what
    the profile found free at the stable rate. A producer without a rate of requests (images, audio)
    has stable_rate_per_s = inf.
    """
    if _rises(load, config, stable_rate_per_s):
        return Reclaim() if load.lent_bytes and not load.reclaiming else None
    steady = load.pending_requests <= config.offer_at_pending
    if not steady or load.reclaiming:
        return None
    size = min(load.free_bytes, profiled_free_bytes - load.lent_bytes)
    return Offer(size) if size >= max(1, config.min_offer_bytes) else None


def _rises(load: Load, config: InformerConfig, stable_rate_per_s: float) -> bool:
    if load.stuck or load.pending_requests >= config.reclaim_at_pending:
        return True
    if config.rate_margin is None:
        return False
    return load.rate_per_s > stable_rate_per_s * (1 + config.rate_margin)


@dataclass(slots=True)
class Looks:
    """Tells when a control loop looks: every n iterations (section 6), or every `every_s` seconds
    (the artifact)."""

    config: InformerConfig
    iterations: int = 0  # iterations since its last look
    at_s: float = 0.0  # time of its last look

    def due(self, now_s: float, *, idle: bool = False) -> bool:
        """Whether it must look now. idle: nothing can run, so that no iteration will be counted."""
        every_s = self.config.every_s
        if every_s is not None:
            found = now_s >= self.at_s + every_s  # rounded as by those who sleep until then
        else:
            found = idle or self.iterations >= self.config.every_iterations
        if found:
            self.iterations, self.at_s = 0, now_s
        return found
