"""The harness's side of elastic workers' bytes, without workers."""

from __future__ import annotations

from contextlib import ExitStack

from harness.clock import WallLoop
from harness.device.location import dram, hbm
from harness.device.topology import Topology
from harness.engine.fabric import LinkTable, TorchFabric
from harness.engine.host import memory_file
from harness.engine.paced_links import PacedLinks, table_bytes
from tests.elastic import hardware


def test_stalled_links_are_taken_until_the_stall_is_over_and_others_are_not() -> None:
    machine, loop = hardware(), WallLoop()
    places = [hbm(0, 0), hbm(0, 1), dram(0)]
    links = LinkTable(Topology(machine), places, paced=True)
    stack = ExitStack()
    sender = PacedLinks(memory_file(stack, "links", table_bytes(len(links))), len(links))
    fabric = TorchFabric(loop, links, sender, 1)

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
