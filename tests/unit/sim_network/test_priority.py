"""Urgent transfers: who waits for whom, and how long at most."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.device.location import hbm
from tests.unit.sim_network.transfers import NO_LATENCY, Send, cluster, run

A, B, C = hbm(0, 0), hbm(1, 0), hbm(1, 1)
NIC = NO_LATENCY.nic_bytes_per_s


def test_behind_an_unchunked_transfer_an_urgent_one_waits_for_all_of_it() -> None:
    kv, activation = Send(A, B, 500), Send(A, B, 50, start_s=1.0, priority=1)
    assert run(cluster(), [kv, activation]) == [10.0, 11.0]


def test_behind_chunks_it_waits_for_one() -> None:
    kv = Send(A, B, 500, chunk_bytes=100)  # boundaries at 2, 4, 6 ... s
    activation = Send(A, B, 50, start_s=2.5, priority=1)
    assert run(cluster(), [kv, activation]) == [11.0, 5.0]


def test_towards_another_place_it_takes_the_shared_link_at_once() -> None:
    # Packets of two queue pairs: the NIC arbitrates, nothing to wait for.
    kv, activation = Send(A, C, 500), Send(A, B, 50, start_s=2.5, priority=1)
    assert run(cluster(), [kv, activation]) == [11.0, 3.5]


def test_a_chunk_that_someone_urgent_waits_for_is_itself_urgent() -> None:
    # The KV chunk A→B would wait for the bulk A→C, of a class in between, and the activation for it
    kv = Send(A, B, 100, chunk_bytes=100)
    bulk = Send(A, C, 500, start_s=1.0, priority=1)
    activation = Send(A, B, 50, start_s=3.0, priority=2)
    # 50 bytes by 1 s, starved to 3 s, the other 50 by 4 s, the activation by 5 s, the bulk last:
    # 100 bytes from 1 to 3 s, 400 from 5 s.
    assert run(cluster(), [kv, bulk, activation]) == [4.0, 13.0, 5.0]


def test_urgency_that_comes_during_the_latency_counts_too() -> None:
    topology = cluster(nic_latency_s=1.0)
    kv = Send(A, B, 100)  # its bytes begin at 1 s
    bulk = Send(A, C, 500, priority=1)
    activation = Send(A, B, 50, start_s=0.5, priority=2)
    # KV 1–3 s; then the activation's latency, when the bulk has the link: 50 by 4 s; 4–5 s.
    assert run(topology, [kv, bulk, activation]) == [3.0, 1 + 10 + 3, 5.0]


def test_between_equals_the_first_to_come_goes_on_after_an_urgent_one() -> None:
    first, second = Send(A, B, 100, chunk_bytes=50), Send(A, B, 50, start_s=0.1)
    urgent = Send(A, B, 50, start_s=0.2, priority=1)
    assert run(cluster(), [first, second, urgent]) == [3.0, 4.0, 2.0]


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[list[Send], list[Send], int, float]:
    """KV in chunks A→B and to others, and activations A→B that do not overlap one another."""
    chunk = draw(st.integers(10, 200))
    latency_s = draw(st.sampled_from([0.0, 0.25]))
    kv = [
        Send(A, draw(st.sampled_from([B, B, C])), draw(st.integers(1, 2000)), start, 0, chunk)
        for start in draw(st.lists(st.floats(0, 20), min_size=1, max_size=5))
    ]
    activations = [
        Send(A, B, draw(st.integers(1, 50)), start_s=i * 20 + draw(st.floats(0, 5)), priority=1)
        for i in range(3)
    ]
    return kv, activations, chunk, latency_s


@settings(deadline=None)
@given(exchanges())
def test_activations_never_wait_behind_more_than_one_kv_chunk(
    exchange: tuple[list[Send], list[Send], int, float],
) -> None:
    kv, activations, chunk, latency_s = exchange
    arrived = run(cluster(nic_latency_s=latency_s), [*kv, *activations])[len(kv) :]
    for send, arrival_s in zip(activations, arrived, strict=True):
        alone_s = latency_s + send.num_bytes / NIC
        one_chunk_s = latency_s + chunk / NIC
        assert arrival_s - send.start_s <= (alone_s + one_chunk_s) * (1 + 1e-9)


@settings(deadline=None)
@given(exchanges())
def test_giving_way_costs_no_bandwidth(
    exchange: tuple[list[Send], list[Send], int, float],
) -> None:
    """A's NIC is never idle while something waits for it, in whatever order it goes."""
    kv, activations, _, _ = exchange
    equals = [replace(send, priority=0) for send in activations]
    done_s = max(run(cluster(), [*kv, *activations]))
    assert done_s == pytest.approx(max(run(cluster(), [*kv, *equals])))
