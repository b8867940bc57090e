"""The harness's side of elastic workers' bytes, without workers."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import replace
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import pytest

from harness.clock import WallLoop
from harness.device.location import dram, hbm, ssd
from harness.device.topology import Topology
from harness.engine.bookings import Bookings
from harness.engine.elastic import TorchElastic
from harness.engine.fabric import LinkTable, TorchFabric
from harness.engine.host import memory_file
from harness.engine.node_files import OpenFile
from harness.engine.paced_links import PacedLinks
from harness.errors import UsageError
from tests.elastic import hardware


def test_stalled_links_are_taken_until_the_stall_is_over_and_others_are_not() -> None:
    machine, loop = hardware(), WallLoop()
    places = [hbm(0, 0), hbm(0, 1), dram(0)]
    links = LinkTable(Topology(machine), places, paced=True, one_host=True)
    stack = ExitStack()
    ((name, num_bytes),) = links.sizes(0).items()
    file = memory_file(stack, name, num_bytes)
    sender = PacedLinks({name: OpenFile(file)})
    table = Bookings(file)
    fabric = TorchFabric(
        loop, links, lambda node, name, numbers, for_s: table.stall(numbers, for_s), 1
    )

    async def main() -> tuple[float, float, bool]:
        stall = loop.spawn(fabric.stall_links([hbm(0, 0)], places[1:], 0.2), name="stall")
        await loop.sleep(0.01)
        ways = (links.path(dram(0), to) for to in (places[1], places[0]))
        other_s, arrives_s = (sender.book(way, 1) - loop.start_monotonic_s for way in ways)
        await loop.wait(stall.finished)
        return other_s, arrives_s, bool(stall.result)

    with stack:
        other_s, arrives_s, struck = loop.run(main())
    assert struck
    assert arrives_s >= 0.2 > other_s


def test_paced_links_of_a_leaf_switch_that_hosts_share_are_refused() -> None:
    """Each host would book them for itself."""
    machine = replace(hardware(), num_devices=4, devices_per_node=1, devices_per_leaf=2)
    workers: Any = SimpleNamespace(launcher=SimpleNamespace(one_host=False), book=None)
    config: Any = SimpleNamespace(elastic=SimpleNamespace(paced=True))
    experiment: Any = SimpleNamespace(loop=WallLoop(), hardware=machine)
    with pytest.raises(UsageError, match="devices_per_leaf=2 is above devices_per_node=1"):
        TorchElastic(workers, config, experiment)


@pytest.mark.parametrize("one_host", [True, False])
def test_links_are_booked_at_the_node_where_they_are(one_host: bool) -> None:
    """Also those of a leaf switch that two nodes share: at each of them."""
    machine = replace(hardware(), num_devices=4, devices_per_node=1, devices_per_leaf=2)
    topology = Topology(machine)
    places = [place for node in range(4) for place in (hbm(node, 0), dram(node), ssd(node))]
    links = LinkTable(topology, places, paced=True, one_host=one_host)
    names = {number: name for name, number in links._numbers.items()}
    assert len({name for node in range(4) for name in links.sizes(node)}) == (1 if one_host else 4)
    for source, target in permutations(places, 2):
        path = links.path(source, target)
        booked = {
            table: [names[number] for number in numbers] for table, numbers in path.links.items()
        }
        on_the_way = [link.name for link in topology.path(source, target).links]
        assert [name for part in booked.values() for name in part] == on_the_way
        if one_host:
            assert booked.keys() == {links.table(0)}
            continue
        for table, part in booked.items():
            node = next(each for each in range(4) if links.table(each) == table)
            for name in part:
                where = node // 2 if name.startswith("leaf") else node
                assert re.findall(r"\d+", name)[0] == str(where)
