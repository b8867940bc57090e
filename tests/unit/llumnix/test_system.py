"""Llumnix's three modes on simulated instances."""

from __future__ import annotations

import pytest

from tests.elastic import private
from tests.kunserve import burst
from tests.llumnix import llumnix, move_lopsided


@pytest.mark.parametrize(
    ("overrides", "stages"),
    [
        (("system.mode=replication",), 1),
        (("system.mode=migration",), 1),
        (("system.mode=migration", "system.variant=artifact"), 1),
        (("system.mode=pipeline",), 2),
    ],
)
def test_all_requests_are_served_and_no_parameter_moves(
    overrides: tuple[str, ...], stages: int
) -> None:
    with private("sim", 4, kv_blocks=48) as bed:
        system = llumnix(bed, *overrides)

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
        assert "kv_move" not in kinds or overrides == ("system.mode=migration",)
        assert "load" not in kinds
        held = sum(len(instance.resident) for instance in bed.instances)
        assert held == bed.model.num_layers * 4 // stages
        assert not any(instance.kv.held for instance in bed.instances)


def test_a_queue_moves_to_where_there_is_room() -> None:
    """All requests are given to one instance: in KunServe's code the other one takes some."""
    with private("sim", 2, kv_blocks=48) as bed:
        system = llumnix(bed, "system.mode=migration", "system.variant=artifact")

        async def main() -> None:
            bed.loop.spawn(system.serve(), name="system")
            await bed.loop.sleep(0.001)
            requests = [bed.request(200, 40) for _ in range(12)]
            for request in requests:
                system._manager.servers[0].submit(request)
            while not all(request.finished for request in requests):
                await bed.loop.sleep(0.05)

        bed.run(main())
        used = {bed.recorder.records[r.request_id].instance for r in bed.requests}
        assert used == {"sim-0", "sim-1"}


@pytest.mark.parametrize("kv_blocks", [48, 80])
def test_running_requests_move_and_decode_meanwhile(kv_blocks: int) -> None:
    """All are given to one instance, whose KV is soon short: some go on at the other one."""
    with private("sim", 2, kv_blocks=kv_blocks) as bed:
        move_lopsided(bed, llumnix(bed, "system.mode=migration", "system.poll_s=0.005"))
        moves = [event for event in bed.recorder.events if event["kind"] == "kv_move"]
        moved = {number for event in moves for number in event["fields"]["requests"]}
        used = {bed.recorder.records[r.request_id].instance for r in bed.requests}
        assert used == {"sim-0"}  # whoever gives the first token
        assert moved
        assert not any(instance.kv.held for instance in bed.instances)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("system.mode=dance",), "valid: replication, migration, pipeline"),
        (("system.variant=code",), "valid: paper, artifact"),
        (("system.pairs.source_below=9",), "must not exceed system.pairs.target_above=3"),
        (("system.stages=2",), "is for mode=pipeline"),
        (("system.mode=pipeline", "system.stages=3"), "cannot form groups of 3; valid: 1, 2, 4"),
    ],
)
def test_what_makes_no_sense_is_refused(overrides: tuple[str, ...], message: str) -> None:
    with private("sim", 4) as bed, pytest.raises(ValueError, match=message):
        llumnix(bed, *overrides)
