"""Llumnix on a test bed, on any engine."""

from __future__ import annotations

from dataclasses import replace

from harness.configuration.config import build
from harness.configuration.options import plain
from harness.cost.profile import HardwareProfile
from harness.running.testbed import Bed
from systems.llumnix.system import Llumnix
from tests.elastic import hardware
from tests.running import composed


def llumnix(bed: Bed, *overrides: str) -> Llumnix:
    profile = HardwareProfile(hardware())
    cluster = replace(bed.given, profile=profile, drop=lambda *told: None, placements=[])
    node = composed("+system=llumnix", "+workload=burstgpt", *overrides).system
    system: Llumnix = build(plain(node), "system", loop=bed.loop, cluster=cluster)
    return system


def move_lopsided(bed: Bed, system: Llumnix, num: int = 12) -> None:
    """Gives all requests to the first of the instances, and waits for their ends."""

    async def main() -> None:
        bed.loop.spawn(system.serve(), name="system")
        while not system._manager.servers:
            await bed.loop.sleep(0.001)
        requests = [bed.request(40 + k, 60) for k in range(num)]
        for request in requests:
            system._manager.servers[0].submit(request)
        while not all(request.finished for request in requests):
            assert bed.loop.now < 120
            await bed.loop.sleep(0.02)

    bed.run(main())
