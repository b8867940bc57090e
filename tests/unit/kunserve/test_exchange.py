"""All KV goes to its weights, once; chunks fit between activations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.elastic.pipeline import remote_attention_bytes
from systems.kunserve.exchange import (
    LinkProfile,
    check_chunk,
    chunk_bytes,
)
from tests.examples import examples
from tests.unit.kunserve.cluster import (
    GROUPS,
    SLOT_BYTES,
    moved,
    moves_of,
    places_of,
    small,
    throttled,
)
from tests.unit.kunserve.strategies import QWEN_14B

KIB, MIB = 2**10, 2**20


@examples(150)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.sampled_from(GROUPS),
    small=small,
    piece=st.integers(1, 3),
)
def test_every_kv_moves_once_to_where_its_weights_are(
    seed: int, sizes: list[int], small: dict[str, int], piece: int
) -> None:
    cluster = throttled(np.random.default_rng(seed), sizes, **small)
    places = places_of(cluster.held)
    for move in moves_of(cluster, piece):
        assert move.source != move.target
        assert 1 <= len(move.layers) <= piece
        moved(places, move)
    weights = {layer: s.member for s in cluster.merged for layer in s.layers}
    assert all(member == weights[layer] for (_, layer), member in places.items())


def test_kv_and_activations_as_in_the_paper() -> None:
    """§4.2: 192 MB for 1 K tokens, 672 KB for a token's remote attention."""
    assert QWEN_14B.kv_bytes_per_token * 1024 == 192 * MIB
    assert [48 * each for each in remote_attention_bytes(QWEN_14B)] == [672 * KIB, 480 * KIB]


@settings(deadline=None)
@given(
    interval_s=st.floats(1e-5, 0.1),
    activation=st.integers(0, 10**6),
    rate=st.floats(1e8, 1e11),
    latency_s=st.floats(0, 1e-4),
)
def test_a_chunk_fits_between_two_activations(
    interval_s: float, activation: int, rate: float, latency_s: float
) -> None:
    link = LinkProfile(rate, latency_s)
    chunk = chunk_bytes(interval_s, activation, link, SLOT_BYTES)
    assert chunk % SLOT_BYTES == 0
    assert chunk >= SLOT_BYTES
    used_s = link.seconds(chunk) + link.seconds(activation)
    assert used_s <= interval_s * (1 + 1e-9) or chunk == SLOT_BYTES
    larger_s = link.seconds(chunk + SLOT_BYTES) + link.seconds(activation)
    assert larger_s > interval_s * (1 - 1e-9)


def test_a_chunk_larger_than_the_exchange_is_told() -> None:
    check_chunk(10, 1, 10)
    with pytest.raises(
        ValueError, match=r"chunks\.bytes=11 must be at least a slot, 1, and at most"
    ):
        check_chunk(11, 1, 10)
