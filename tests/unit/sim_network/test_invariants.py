"""What holds on any topology for any transfers."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from harness.device.topology import Link, Topology
from tests.examples import examples
from tests.unit.sim_network.transfers import (
    Send,
    exact_arrivals,
    run,
    run_watched,
    send_lists,
    topologies,
)

EASY = examples(60)


@EASY
@given(topologies(), send_lists(distinct_pairs=True, chunks=False))
def test_arrivals_are_those_of_an_exact_simulation(topology: Topology, sends: list[Send]) -> None:
    assert run(topology, sends) == pytest.approx(exact_arrivals(topology, sends), rel=1e-9)


@EASY
@given(topologies(), send_lists(), st.lists(st.floats(0, 200), min_size=1, max_size=20))
def test_no_link_ever_carries_more_than_its_capacity(
    topology: Topology, sends: list[Send], watch_s: list[float]
) -> None:
    """Between any two instants, hence at any: starts, ends and what hypothesis comes up with."""
    times = sorted({*watch_s, *run(topology, sends), *(send.start_s for send in sends)})
    times = [b for a, b in pairwise([-1.0, *times]) if b - a > 1e-6]
    _, seen, _ = run_watched(topology, sends, times)
    for (start_s, before), (end_s, after) in pairwise(zip(times, seen, strict=True)):
        for link, num_bytes in after.items():
            room = link.bytes_per_s * (end_s - start_s)
            assert -1e-6 <= num_bytes - before[link] <= room * (1 + 1e-6) + 1e-6, link


@EASY
@given(topologies(), send_lists())
def test_bytes_are_conserved(topology: Topology, sends: list[Send]) -> None:
    _, _, carried = run_watched(topology, sends, [])
    for link, num_bytes in carried.items():
        crossing = [s for s in sends if link in topology.path(s.src, s.dst).links]
        assert num_bytes == sum(send.num_bytes for send in crossing)


@EASY
@given(topologies(), send_lists())
def test_nobody_is_faster_than_alone(topology: Topology, sends: list[Send]) -> None:
    for send, arrival_s in zip(sends, run(topology, sends), strict=True):
        alone_s = topology.path(send.src, send.dst).time_s(send.num_bytes)
        assert arrival_s >= (send.start_s + alone_s) * (1 - 1e-9)


@EASY
@given(topologies(), send_lists())
def test_between_two_places_equals_arrive_in_the_order_in_which_they_were_sent(
    topology: Topology, sends: list[Send]
) -> None:
    arrived = run(topology, sends)
    order = sorted(range(len(sends)), key=lambda i: sends[i].start_s)
    for earlier, later in ((a, b) for i, a in enumerate(order) for b in order[i + 1 :]):
        a, b = sends[earlier], sends[later]
        if (a.src, a.dst, a.priority) == (b.src, b.dst, b.priority):
            assert arrived[earlier] < arrived[later]


@EASY
@given(topologies(), send_lists(), st.sampled_from([1.0, 17.25, 1000.0]))
def test_starting_later_changes_nothing_else(
    topology: Topology, sends: list[Send], later_s: float
) -> None:
    moved = [replace(send, start_s=send.start_s + later_s) for send in sends]
    expected = [arrival_s + later_s for arrival_s in run(topology, sends)]
    assert run(topology, moved) == pytest.approx(expected, rel=1e-9)


@EASY
@given(topologies(), send_lists(distinct_pairs=True), st.randoms(use_true_random=False))
def test_the_order_of_starts_at_one_time_does_not_matter_between_pairs(
    topology: Topology, sends: list[Send], random: Random
) -> None:
    together = [replace(send, start_s=0.0) for send in sends]
    order = list(range(len(sends)))
    random.shuffle(order)
    shuffled = run(topology, [together[i] for i in order])
    arrived = run(topology, together)
    assert shuffled == pytest.approx([arrived[i] for i in order], rel=1e-9)


@EASY
@given(topologies(), send_lists(distinct_pairs=True))
def test_the_opposite_direction_is_another_network(topology: Topology, sends: list[Send]) -> None:
    there = [send for send in sends if str(send.src) < str(send.dst)]
    back = [replace(send, src=send.dst, dst=send.src) for send in there]
    # On the way back a third place may be reached over a link of someone's way there.
    assume(there and not links_of(topology, there) & links_of(topology, back))
    assert run(topology, [*there, *back])[: len(there)] == run(topology, there)


def links_of(topology: Topology, sends: list[Send]) -> set[Link]:
    return {link for send in sends for link in topology.path(send.src, send.dst).links}
