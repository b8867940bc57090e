"""Who is paired live, and what becomes of the queue at the end (§5.2)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from systems.blitzscale.chains import Plan, expected_s
from systems.blitzscale.pairing import Overloaded, selected
from systems.blitzscale.planner import plan
from systems.blitzscale.zigzag import Step, step
from tests.unit.blitzscale.clusters import LAYERS, fabric, source, target


def busy(name: str, backlog_s: float, arriving: float = 1.0) -> Overloaded:
    return Overloaded(name=name, backlog_s=backlog_s, arriving=arriving)


def test_stop_the_world_latency_by_hand() -> None:
    assert busy("a", 1.0).stop_latency_s(4.0) == 1.0  # done before the load is
    assert busy("a", 6.0).stop_latency_s(4.0) == 5.0  # 4 alone, then half of 2
    assert busy("a", 6.0, arriving=3.0).stop_latency_s(4.0) == 7.0  # 6 + 2 x 4 = 14, halved
    assert busy("a", 1.0, arriving=1.5).stop_latency_s(4.0) == 2.0  # who comes at 2, with 2 ahead


@given(
    backlog_s=st.floats(0, 20),
    arriving=st.floats(0, 4),
    load_s=st.floats(0.1, 10),
    share=st.floats(0, 1),
)
def test_no_request_takes_longer_than_the_stop_the_world_latency(
    backlog_s: float, arriving: float, load_s: float, share: float
) -> None:
    """The new instance halves what is ahead of a request at `load_s` if that is not done by then;
    the queue is emptied and filled at once."""
    at_s = share * load_s
    ahead_s = max(0.0, backlog_s + arriving * at_s - at_s)
    end_s = at_s + ahead_s
    if end_s > load_s:
        end_s = load_s + (end_s - load_s) / 2
    assert end_s - at_s <= busy("a", backlog_s, arriving).stop_latency_s(load_s) + 1e-9


def two_chains(*decodes: str) -> Plan:
    """Tails t3, two NICs wide: all layers after 4, and t4, one wide: after 8."""
    net = fabric([(2, 0), (1, 0), (1, 0), (2, 0), (1, 0)])
    copies = [source(net, 0), source(net, 1)]
    new = [
        replace(each, live=each.name not in decodes) for each in (target(net, 3), target(net, 4))
    ]
    return plan(net, copies, new, LAYERS)


def tails_s(plan: Plan) -> dict[str, float]:
    after_s = expected_s(plan, LAYERS)
    return {tail.name: after_s[tail.name][-1] for tail in plan.tails() if tail.live}


def test_the_most_loaded_is_paired_with_the_slowest_tail() -> None:
    found = selected(tails_s(two_chains()), [busy("a", 9), busy("b", 20)], 3.0)
    assert found == [("b", "t4"), ("a", "t3")]


def test_no_pair_where_stopping_meets_the_slo_or_the_target_is_a_decode() -> None:
    def found(slo_s: float, *decodes: str) -> list[tuple[str, str]]:
        return selected(tails_s(two_chains(*decodes)), [busy("b", 20)], slo_s)

    assert busy("b", 20).stop_latency_s(8.0) == 14
    assert found(14.0) == []
    assert found(13.9) == [("b", "t4")]
    assert found(3.0, "t4") == [("b", "t3")]
    assert found(3.0, "t3", "t4") == []


def test_who_forwards_is_not_paired() -> None:
    net = fabric([(1, 0)] * 3)
    chain = plan(net, [source(net, 0)], [target(net, 1), target(net, 2)], LAYERS)
    overloaded = [busy("a", 99), busy("b", 99)]
    assert selected(tails_s(chain), overloaded, 1.0) == [("a", "t2")]


@pytest.mark.parametrize(
    ("loaded", "expected"), [(0, Step.REDIRECT), (1, Step.COOPERATE), (7, Step.REDISTRIBUTE)]
)
def test_the_three_steps(loaded: int, expected: Step) -> None:
    assert step(loaded, 7) is expected
