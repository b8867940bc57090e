"""When a producer lends and reclaims, and that an evening out of the load ends in a lease again."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from systems.aqua.informer import InformerConfig, Load, Looks, Offer, Reclaim, decide

PAPER = InformerConfig(
    reclaim_at_pending=10, offer_at_pending=2, rate_margin=0.2, rate_window_s=5.0,
    min_offer_bytes=10, every_iterations=8, every_s=None,
)  # fmt: skip
ARTIFACT = replace(PAPER, rate_margin=None, every_s=4.0)
STEADY = Load(pending_requests=0, rate_per_s=2.5, free_bytes=50, lent_bytes=0)


def decided(load: Load, config: InformerConfig = PAPER) -> Offer | Reclaim | None:
    return decide(load, config, stable_rate_per_s=2.5, profiled_free_bytes=40)


def test_a_steady_producer_offers_what_the_profile_found() -> None:
    assert decided(STEADY) == Offer(40)
    assert decided(replace(STEADY, free_bytes=30)) == Offer(30)
    assert decided(replace(STEADY, lent_bytes=40)) is None
    assert decided(replace(STEADY, lent_bytes=25)) == Offer(15)
    assert decided(replace(STEADY, lent_bytes=31)) is None  # 9 bytes are not worth a lease


def test_load_that_rises_reclaims() -> None:
    lending = replace(STEADY, lent_bytes=40)
    assert decided(replace(lending, pending_requests=9)) is None
    assert decided(replace(lending, pending_requests=10)) == Reclaim()
    assert decided(replace(lending, rate_per_s=3.1)) == Reclaim()
    assert decided(replace(lending, rate_per_s=3.1), ARTIFACT) is None
    assert decided(replace(STEADY, rate_per_s=3.1)) is None  # nothing is lent, and nothing offered
    assert decided(replace(STEADY, rate_per_s=3.1), ARTIFACT) == Offer(40)


def test_a_queue_that_cannot_move_reclaims() -> None:
    lending = replace(STEADY, lent_bytes=40, pending_requests=1)
    assert decided(lending) is None
    assert decided(replace(lending, stuck=True)) == Reclaim()
    assert decided(replace(STEADY, stuck=True)) is None  # nothing is lent: no reclaim, no offer


def test_nothing_is_asked_while_a_reclaim_is_not_done() -> None:
    waiting = replace(STEADY, lent_bytes=20, reclaiming=True)
    assert decided(waiting) is None
    assert decided(replace(waiting, pending_requests=10)) is None


def test_between_the_thresholds_it_stays_as_it_is() -> None:
    assert decided(replace(STEADY, pending_requests=3)) is None
    assert decided(replace(STEADY, pending_requests=3, lent_bytes=40)) is None


def test_a_producer_of_images_has_no_rate() -> None:
    found = decide(STEADY, PAPER, stable_rate_per_s=inf, profiled_free_bytes=40)
    assert found == Offer(40)


@given(
    st.integers(0, 20), st.floats(0, 10), st.integers(0, 100), st.integers(0, 60), st.booleans()
)  # fmt: skip
def test_it_never_offers_what_it_has_not(
    pending: int, rate: float, free: int, lent: int, reclaiming: bool
) -> None:
    found = decided(Load(pending, rate, free, lent, reclaiming))
    if isinstance(found, Offer):
        assert 10 <= found.num_bytes <= free
        assert lent + found.num_bytes <= 40
        assert pending <= 2
        assert not reclaiming
    if isinstance(found, Reclaim):
        assert lent > 0


def test_the_control_loop_looks_every_n_iterations_or_every_four_seconds() -> None:
    paper, artifact = Looks(PAPER), Looks(ARTIFACT)
    paper.iterations, artifact.iterations = 7, 99
    assert not paper.due(99)
    assert not artifact.due(3.9, idle=True)
    paper.iterations += 1
    assert paper.due(99)
    assert artifact.due(4)
    assert (paper.iterations, artifact.iterations) == (0, 0)
    assert not paper.due(99)
    assert not artifact.due(7.9)
    assert paper.due(99, idle=True)
    assert artifact.due(8)


@given(st.floats(0, 1e5), st.sampled_from([0.05, 0.0625, 4.0]))
def test_who_sleeps_until_the_next_look_looks_then(at_s: float, every_s: float) -> None:
    """Else an idle engine would wake up for ever at the same time."""
    looks = Looks(replace(ARTIFACT, every_s=every_s), at_s=at_s)
    assert looks.due(at_s + every_s)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"every_iterations": 0}, r"every_iterations=0 \(n\) must be at least 1"),
        ({"offer_at_pending": 10}, "offer_at_pending=10 must be .* below reclaim_at_pending=10"),
        ({"every_s": 0.0}, "every_s=0 must be above 0"),
        ({"rate_margin": -0.1}, "rate_margin=-0.1 must be at least 0"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(PAPER, **wrong)
