"""ServerlessLLM's host cache (§3, §6)."""

from __future__ import annotations

import pytest

from systems.blitzscale.parameters import HostCache


@pytest.mark.parametrize(("ttl_s", "hit"), [(30.0, False), (300.0, True)])
def test_a_gap_of_200_s_evicts_only_under_the_codes_time_to_live(ttl_s: float, hit: bool) -> None:
    """AzureCode's bursts are at 0:05 and 3:25 (Fig. 17)."""
    cache = HostCache(ttl_s)
    cache.loaded(0)
    cache.reclaimed(0, 5.0)
    assert cache.has(0, 205.0) is hit


def test_a_model_stays_while_one_instance_of_the_host_uses_it() -> None:
    cache = HostCache(10.0)
    cache.loaded(0)
    cache.loaded(0)
    cache.loaded(1)
    cache.reclaimed(0, 1.0)
    assert cache.has(0, 1e6)
    assert cache.copies(1e6) == 2
    cache.reclaimed(0, 2.0)
    assert cache.has(0, 11.9)
    assert not cache.has(0, 12.0)
    assert cache.copies(12.0) == 1


def test_a_host_that_never_had_it_or_is_lost_misses() -> None:
    cache = HostCache(10.0)
    cache.loaded(0)
    assert not cache.has(1, 0.0)
    cache.failed(0)
    assert not cache.has(0, 0.0)
