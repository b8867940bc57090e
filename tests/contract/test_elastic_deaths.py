"""What the death of an elastic instance does to work under way, simulated and live; and slots."""

from __future__ import annotations

import pytest

from harness.errors import InstanceLost
from harness.request import Batch
from harness.running.testbed import finish, prefill
from tests.elastic import DEPTH, ON_EVERY_ENGINE, Beds, halves, private, run_exactly

pytestmark = ON_EVERY_ENGINE


@pytest.mark.parametrize("victim", [0, 1])
def test_a_death_fails_what_was_under_way_and_nothing_else(engine: str, victim: int) -> None:
    with private(engine, 3) as made:

        async def story() -> None:
            lost: list[str] = []
            made.cluster.on_lost = lambda instance: lost.append(instance.name)
            pipe, bystander = halves(made), made.instances[2]
            mine, others = made.request(20, 400), made.request(20, 60)
            await prefill(pipe, [mine])
            await prefill(bystander, [others])
            beside = made.loop.spawn(finish(bystander, [others]), name="beside")

            async def kill() -> None:
                await made.loop.sleep(0.05)
                made.cluster.kill(made.instances[victim])

            made.loop.spawn(kill(), name="kill")
            with pytest.raises(InstanceLost, match=made.instances[victim].name):
                await finish(pipe, [mine])
            await made.loop.wait(beside.finished)
            assert others.finished
            while not lost:
                await made.loop.sleep(0.01)
            assert lost == [made.instances[victim].name]
            with pytest.raises(InstanceLost):
                await made.instances[victim].execute(Batch(decodes=[others]))
            pipe.evict(mine)
            alive = made.instances[1 - victim]
            assert mine.request_id not in alive.kv.held
            await prefill(alive, [mine])
            await finish(alive, [mine])

        run_exactly(made, story())


def test_a_death_without_a_policy_ends_the_run_by_name(engine: str) -> None:
    with private(engine, 2) as made:

        async def story() -> None:
            made.cluster.kill(made.instances[1])
            await made.loop.sleep(30.0)

        with pytest.raises(InstanceLost, match=f"instance {made.instances[1].name} is lost"):
            made.run(story())


def test_a_source_that_dies_fails_the_load(engine: str) -> None:
    with private(engine, 3, resident={1: range(0)}) as made:

        async def story() -> None:
            made.cluster.on_lost = lambda instance: None
            source, empty, other = made.instances
            made.cluster.kill(source)
            with pytest.raises(InstanceLost, match=source.name):
                await empty.load(range(DEPTH), source)
            assert await empty.load(range(DEPTH), other)

        made.run(story())


def test_slots_are_accounted_by_role(bed: Beds, engine: str) -> None:
    with bed(engine, 1) as made:

        async def story() -> None:
            instance = made.instances[0]
            made.cluster.take(instance, "prefill")
            await made.loop.sleep(0.02)
            made.cluster.take(instance, "decode")
            await made.loop.sleep(0.04)
            made.cluster.release(instance)
            assert made.cluster.role(instance) is None

        made.run(story())
        held = {
            event["fields"]["role"]: event["end_s"] - event["start_s"]
            for event in made.recorder.events
            if event["kind"] == "slot"
        }
        assert set(held) == {"prefill", "decode"}
        assert held["prefill"] >= 0.0199
        assert held["decode"] >= 0.0399


def test_a_slot_tells_how_long_batches_occupied_it_overlapping_ones_counted_once(
    bed: Beds, engine: str
) -> None:
    with bed(engine, 2) as made:

        async def story() -> float:
            for instance in made.instances:
                made.cluster.take(instance, "serving")
            pipe, requests = halves(made), [made.request(20, 40) for _ in range(2)]
            start_s = made.loop.now
            await prefill(pipe, requests)
            tasks = [made.loop.spawn(finish(pipe, [each]), name="batch") for each in requests]
            for task in tasks:
                await made.loop.wait(task.finished)
            spent_s = float(made.loop.now - start_s)
            for instance in made.instances:
                made.cluster.take(instance, "idle")
            await made.loop.sleep(0.02)
            for instance in made.instances:
                made.cluster.release(instance)
            return spent_s

        before = len(made.recorder.events)  # of other tests
        spent_s = made.run(story())
        events = made.recorder.events[before:]
        slots = [each["fields"] for each in events if each["kind"] == "slot"]
        serving = [slot["occupied_s"] for slot in slots if slot["role"] == "serving"]
        assert len(serving) == 2
        assert all(0 < occupied_s <= spent_s * (1 + 1e-9) for occupied_s in serving)
        if engine == "sim":  # one batch follows another at once
            assert serving == [pytest.approx(spent_s)] * 2
        assert [slot["occupied_s"] for slot in slots if slot["role"] == "idle"] == [0.0, 0.0]


def test_the_death_of_a_holder_fails_the_pipeline_that_it_attends_for(engine: str) -> None:
    with private(engine, 3) as made:

        async def story() -> None:
            made.cluster.on_lost = lambda instance: None
            holder, first, second = made.instances
            requests = [made.request(20, 400)]
            await prefill(holder, requests)
            pipe = made.cluster.pipeline([(first, range(2)), (second, range(2, DEPTH))])
            pipe.adopt(requests, holder)  # all of its KV stays where it is

            async def kill() -> None:
                await made.loop.sleep(0.05)
                made.cluster.kill(holder)

            made.loop.spawn(kill(), name="kill")
            with pytest.raises(InstanceLost, match=holder.name):
                await finish(pipe, requests)

        made.run(story())


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "pipeline"])
def test_a_death_while_a_batch_waits_for_its_kv_to_move(engine: str, alone: bool) -> None:
    """The batch had found its instances alive when it began to wait."""
    with private(engine, 2) as made:

        async def story() -> None:
            made.cluster.on_lost = lambda instance: None
            victim = made.instances[0]
            executor = victim if alone else halves(made)
            request = made.request(20, 40)
            await prefill(executor, [request])
            directory = made.cluster.directory
            gate = await directory.close_gates([request.request_id])  # as whoever moves its KV does

            async def decode() -> None:
                with pytest.raises(InstanceLost, match=victim.name):
                    await finish(executor, [request])

            waiting = made.loop.spawn(decode(), name="decode")
            await made.loop.sleep(0.01)
            made.cluster.kill(victim)
            while victim.lost is None:
                await made.loop.sleep(0.001)
            directory.open_gates(gate)
            await made.loop.wait(waiting.finished)
            assert not request.in_batch

        made.run(story())
