"""Which spare GPUs are taken (§5.1)."""

from __future__ import annotations

from systems.blitzscale.chains import Medium, Source
from systems.blitzscale.planner import nearest_spares, spread_spares
from tests.unit.blitzscale.clusters import fabric

# Nodes 0 and 1 are on leaf 0, 2 to 4 on leaf 1. GPUs: 0-1, 2, 3, 4-5, 6-8.
NET = fabric([(2, 0), (1, 0), (1, 1), (2, 1), (3, 1)])
SPARE = [(1,), (2,), (3,), (4,), (5,), (6,), (7,)]


def test_nvlink_then_the_leaf_then_the_widest_domain() -> None:
    copy = Source(medium=Medium.GPU, node=0, devices=(0,))
    assert nearest_spares(NET, [copy], SPARE, 5) == [(1,), (2,), (4,), (5,), (6,)]


def test_beside_a_host_copy_first() -> None:
    host = Source(medium=Medium.HOST, node=2)
    assert nearest_spares(NET, [host], SPARE, 3) == [(3,), (4,), (5,)]


def test_from_ssd_every_node_is_as_good() -> None:
    ssds = [Source(medium=Medium.SSD, node=node) for node in range(5)]
    assert nearest_spares(NET, ssds, SPARE, 2) == [(4,), (5,)]


def test_no_more_than_there_are() -> None:
    copy = Source(medium=Medium.GPU, node=0, devices=(0,))
    assert sorted(nearest_spares(NET, [copy], SPARE, 99)) == SPARE


def test_spread_takes_each_from_the_host_with_the_most_left() -> None:
    assert spread_spares(NET, SPARE, 4) == [(4,), (6,), (1,), (2,)]
