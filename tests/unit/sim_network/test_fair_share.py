"""Max–min fair rates: against exact water-filling, and by what defines them."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.device.topology import Link
from harness.sim.fair_share import fair_rates
from tests.unit.sim_network.transfers import exact_rates

Flows = list[tuple[int, list[Link]]]
CLOSE = 1e-9


@st.composite
def flow_lists(draw: st.DrawFn, max_priority: int = 2) -> Flows:
    capacities = st.sampled_from([1.0, 3.0, 10.0, 33.3, 50.0])
    links = [Link(f"link {i}", draw(capacities)) for i in range(draw(st.integers(1, 6)))]
    crossed = st.lists(st.sampled_from(links), min_size=1, max_size=4, unique=True)
    return draw(st.lists(st.tuples(st.integers(0, max_priority), crossed), max_size=10))


def load(flows: Flows, rates: list[float], link: Link) -> float:
    return sum(rate for rate, (_, links) in zip(rates, flows, strict=True) if link in links)


def test_the_flow_with_the_narrow_link_leaves_the_rest_to_the_other() -> None:
    wide, narrow = Link("wide", 10.0), Link("narrow", 2.0)
    assert fair_rates([(0, [wide, narrow]), (0, [wide])]) == [2.0, 8.0]


def test_a_flow_that_crosses_a_link_twice_takes_two_shares_of_it() -> None:
    link = Link("link", 12.0)
    assert fair_rates([(0, [link, link])]) == [6.0]
    assert fair_rates([(0, [link, link]), (0, [link])]) == [4.0, 4.0]


def test_a_lower_class_gets_what_the_higher_leaves() -> None:
    wide, narrow = Link("wide", 10.0), Link("narrow", 2.0)
    flows = [(1, [wide, narrow]), (0, [wide]), (0, [wide]), (0, [narrow])]
    assert fair_rates(flows) == [2.0, 4.0, 4.0, 0.0]


@settings(deadline=None)
@given(flow_lists())
def test_rates_are_those_of_exact_water_filling(flows: Flows) -> None:
    expected = [float(rate) for rate in exact_rates(flows)]
    assert fair_rates(flows) == pytest.approx(expected, rel=CLOSE, abs=CLOSE)


@settings(deadline=None)
@given(flow_lists())
def test_no_link_carries_more_than_its_capacity(flows: Flows) -> None:
    rates = fair_rates(flows)
    for link in {link for _, links in flows for link in links}:
        assert load(flows, rates, link) <= link.bytes_per_s * (1 + CLOSE)


@settings(deadline=None)
@given(flow_lists())
def test_no_rate_can_grow_without_taking_from_a_smaller_or_more_urgent_one(flows: Flows) -> None:
    """Each flow crosses a full link on which nobody of its class is faster, and none is lower."""
    rates = fair_rates(flows)
    for rate, (priority, links) in zip(rates, flows, strict=True):
        bottlenecks = [
            link
            for link in links
            if load(flows, rates, link) >= link.bytes_per_s * (1 - CLOSE)
            and all(
                other <= rate * (1 + CLOSE) + CLOSE if own == priority else other <= CLOSE
                for other, (own, crossed) in zip(rates, flows, strict=True)
                if link in crossed and own <= priority
            )
        ]
        assert bottlenecks, (rate, links)


@settings(deadline=None)
@given(flow_lists())
def test_a_class_does_not_notice_lower_ones(flows: Flows) -> None:
    urgent = [flow for flow in flows if flow[0] == 2]
    among_all = [rate for rate, flow in zip(fair_rates(flows), flows, strict=True) if flow[0] == 2]
    assert among_all == fair_rates(urgent)


@settings(deadline=None)
@given(flow_lists(), st.randoms(use_true_random=False))
def test_the_order_of_flows_does_not_matter(flows: Flows, random: Random) -> None:
    order = list(range(len(flows)))
    random.shuffle(order)
    shuffled = fair_rates([flows[i] for i in order])
    rates = fair_rates(flows)
    assert shuffled == pytest.approx([rates[i] for i in order], rel=CLOSE, abs=CLOSE)
