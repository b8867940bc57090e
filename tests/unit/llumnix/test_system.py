"""Llumnix's three modes on simulated instances."""

from __future__ import annotations

import pytest

from harness.cluster import Cluster
from harness.config import build
from harness.cost.profile import HardwareProfile
from harness.options import plain
from harness.testbed import Bed
from systems.llumnix.system import Llumnix
from tests.elastic import hardware, private
from tests.kunserve import burst
from tests.running import composed


def llumnix(bed: Bed, *overrides: str) -> Llumnix:
    cluster = Cluster(
        models={bed.model.name: bed.model}, instances=[], pool=[], endpoints=[],
        profile=HardwareProfile(hardware()), answer=lambda request: None,
        drop=lambda request, why: None, elastic=bed.cluster, placements=[],
    )  # fmt: skip
    node = composed("+system=llumnix", "+workload=burstgpt", *overrides).system
    system: Llumnix = build(plain(node), "system", loop=bed.loop, cluster=cluster)
    return system


@pytest.mark.parametrize(
    ("mode", "stages"), [("replication", 1), ("migration", 1), ("pipeline", 2)]
)
def test_all_requests_are_served_and_no_parameter_moves(mode: str, stages: int) -> None:
    with private("sim", 4, kv_blocks=48) as bed:
        system = llumnix(bed, f"system.mode={mode}")

        async def main() -> None:
            bed.loop.spawn(system.serve(), name="system")
            requests = []
            for at_s, prompt, output in burst(60):
                await bed.loop.sleep_until(at_s)
                requests.append(bed.request(prompt, output))
                system.submit(requests[-1])
            while not all(request.finished for request in requests):
                assert bed.loop.now < 120
                await bed.loop.sleep(0.05)

        bed.run(main())
        kinds = {event["kind"] for event in bed.recorder.events}
        assert "kv_move" not in kinds
        assert "load" not in kinds
        held = sum(len(instance.resident) for instance in bed.instances)
        assert held == bed.model.num_layers * 4 // stages
        assert not any(instance.kv.held for instance in bed.instances)


def test_a_queue_moves_to_where_there_is_room() -> None:
    """All requests are given to one instance: with migration the other one takes some."""
    with private("sim", 2, kv_blocks=48) as bed:
        system = llumnix(bed, "system.mode=migration")

        async def main() -> None:
            bed.loop.spawn(system.serve(), name="system")
            await bed.loop.sleep(0.001)
            requests = [bed.request(200, 40) for _ in range(12)]
            for request in requests:
                system._shaper.servers[0].submit(request)
            while not all(request.finished for request in requests):
                await bed.loop.sleep(0.05)

        bed.run(main())
        used = {bed.recorder.records[r.request_id].instance for r in bed.requests}
        assert used == {"sim-0", "sim-1"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("system.mode=dance",), "valid: replication, migration, pipeline"),
        (("system.stages=2",), "is for mode=pipeline"),
        (("system.mode=pipeline", "system.stages=3"), "make no groups of 3; valid: 1, 2, 4"),
    ],
)
def test_what_makes_no_sense_is_refused(overrides: tuple[str, ...], message: str) -> None:
    with private("sim", 4) as bed, pytest.raises(ValueError, match=message):
        llumnix(bed, *overrides)
