"""The kernel's contract, on both clocks: ordering, waiting, errors, the end of a run."""

import gc
import sys
import threading
import time
from math import inf

import pytest

from harness.clock import (
    SWITCH_INTERVAL_S,
    Deadlock,
    Event,
    Loop,
    Queue,
    VirtualLoop,
    WallLoop,
)


@pytest.fixture(params=[VirtualLoop, WallLoop])
def loop(request: pytest.FixtureRequest) -> Loop:
    return request.param()


def test_sleep_takes_at_least_its_time(loop: Loop) -> None:
    async def main() -> float:
        await loop.sleep(0.01)
        return loop.now

    assert 0.01 <= loop.run(main()) < 1.0


def test_a_negative_or_nan_sleep_is_refused(loop: Loop) -> None:
    for seconds in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="at least 0"):
            loop.sleep(seconds)


def test_tasks_at_equal_times_run_in_the_order_they_were_started(loop: Loop) -> None:
    order: list[int] = []

    async def note(i: int) -> None:
        await loop.sleep_until(0.005)
        order.append(i)

    async def main() -> None:
        tasks = [loop.spawn(note(i), name=f"t{i}") for i in range(20)]
        for task in tasks:
            await loop.wait(task.finished)

    loop.run(main())
    assert order == list(range(20))


def test_a_task_that_is_started_runs_at_once_to_its_first_wait(loop: Loop) -> None:
    order: list[str] = []

    async def other(*names: str) -> None:
        for name in names:
            order.append(name)
            await loop.sleep(0)

    async def main() -> None:
        loop.spawn(other("spawned"), name="spawned")
        loop.start(other("started", "goes on"), name="started")
        order.append("main")
        await loop.sleep(0.001)

    loop.run(main())
    assert order == ["started", "main", "spawned", "goes on"]


def test_what_fails_at_its_start_aborts_the_run_and_is_named(loop: Loop) -> None:
    async def broken() -> None:
        raise ValueError("at once")

    async def main() -> None:
        loop.start(broken(), name="the broken one")

    with pytest.raises(ValueError, match="at once") as raised:
        loop.run(main())
    assert any("the broken one" in note for note in raised.value.__notes__)


def test_an_event_wakes_all_its_waiters_and_stays_set(loop: Loop) -> None:
    event, woken = Event(loop), []

    async def waiter(i: int) -> None:
        assert await loop.wait(event)
        woken.append(i)

    async def main() -> None:
        tasks = [loop.spawn(waiter(i), name=f"w{i}") for i in range(3)]
        await loop.sleep(0.001)
        assert woken == []
        event.set()
        for task in tasks:
            await loop.wait(task.finished)
        assert await loop.wait(event)  # level-triggered
        event.clear()
        assert not await loop.wait(event, until=loop.now + 0.001)

    loop.run(main())
    assert woken == [0, 1, 2]


def test_the_first_of_several_events_wakes_once(loop: Loop) -> None:
    first, second, woken = Event(loop), Event(loop), []

    async def waiter() -> None:
        while await loop.wait(first, second, until=loop.now + 0.05):
            woken.append((first.is_set, second.is_set))
            first.clear()
            second.clear()

    async def main() -> None:
        task = loop.spawn(waiter(), name="waiter")
        for event in (second, first):
            await loop.sleep(0.001)
            event.set()
        await loop.wait(task.finished)

    loop.run(main())
    assert woken == [(False, True), (True, False)]


def test_an_event_before_the_deadline_leaves_no_phantom_wake_up(loop: Loop) -> None:
    event, wakes = Event(loop), []

    async def waiter() -> None:
        wakes.append(await loop.wait(event, until=loop.now + 0.3))
        event.clear()
        wakes.append(await loop.wait(event, until=loop.now + 0.4))

    async def main() -> None:
        task = loop.spawn(waiter(), name="waiter")
        await loop.sleep(0.001)
        event.set()
        await loop.wait(task.finished)
        assert loop.now >= 0.401

    loop.run(main())
    assert wakes == [True, False]


def test_a_failing_task_aborts_the_run_and_is_named(loop: Loop) -> None:
    closed = []

    async def bystander() -> None:
        try:
            await loop.wait(Event(loop))
        finally:
            closed.append("bystander")

    async def faulty() -> None:
        await loop.sleep(0.001)
        raise KeyError("boom")

    async def main() -> None:
        loop.spawn(bystander(), name="bystander")
        loop.spawn(faulty(), name="faulty-task")
        await loop.sleep(10)

    with pytest.raises(KeyError, match="boom") as caught:
        loop.run(main())
    assert any("faulty-task" in note for note in caught.value.__notes__)
    assert closed == ["bystander"]


def test_the_run_ends_with_main_and_closes_what_still_waits(loop: Loop) -> None:
    async def forever() -> None:
        while True:
            await loop.sleep(0.002)

    async def main() -> str:
        loop.spawn(forever(), name="forever")
        await loop.sleep(0.005)
        return "over"

    assert loop.run(main()) == "over"


def test_a_second_run_does_not_wake_what_the_first_left_waiting(loop: Loop) -> None:
    event, woken = Event(loop), []

    async def waiter() -> None:
        await loop.wait(event, until=0.002)
        woken.append("waiter")

    async def first() -> None:
        loop.spawn(waiter(), name="waiter")
        await loop.sleep(0)

    async def second() -> None:
        event.set()
        await loop.sleep_until(0.004)

    loop.run(first())
    loop.run(second())
    assert woken == []


def test_a_queue_hands_items_over_in_order(loop: Loop) -> None:
    queue: Queue[int] = Queue(loop)
    got: list[int] = []

    async def consumer() -> None:
        while len(got) < 4:
            got.append(await queue.get())

    async def main() -> None:
        task = loop.spawn(consumer(), name="consumer")
        queue.put(1)
        queue.put(2)
        await loop.sleep(0.001)
        queue.put(3)
        queue.put(4)
        await loop.wait(task.finished)

    loop.run(main())
    assert got == [1, 2, 3, 4]


def test_a_busy_task_does_not_starve_timers(loop: Loop) -> None:
    async def spinner() -> None:
        while True:
            await loop.sleep(1e-5)

    async def main() -> None:
        loop.spawn(spinner(), name="spinner")
        await loop.sleep(0.01)

    loop.run(main())


def test_a_service_is_outside_of_the_run_where_time_is_real(loop: Loop) -> None:
    found = loop.service(lambda wall: ("process", wall), lambda: ("embedded", loop))
    assert found == ("process" if isinstance(loop, WallLoop) else "embedded", loop)


def test_virtual_time_reports_a_deadlock_with_names() -> None:
    loop = VirtualLoop()

    async def stuck() -> None:
        await loop.wait(Event(loop))

    async def main() -> None:
        loop.spawn(stuck(), name="the-stuck-one")
        await loop.wait(Event(loop), until=inf)

    with pytest.raises(Deadlock, match="main, the-stuck-one"):
        loop.run(main())


def test_wall_time_wakes_for_a_post_from_another_thread() -> None:
    loop = WallLoop()
    event = Event(loop)

    async def main() -> bool:
        threading.Timer(0.01, loop.post, (event.set,)).start()
        return await loop.wait(event, until=5.0)

    assert loop.run(main())


def test_an_exception_in_a_posted_function_ends_the_run() -> None:
    loop = WallLoop()

    def fail() -> None:
        raise RuntimeError("worker died")

    async def main() -> None:
        loop.post(fail)
        await loop.sleep(10)

    with pytest.raises(RuntimeError, match="worker died"):
        loop.run(main())


def test_a_live_run_is_free_of_garbage_collection_and_of_long_turns() -> None:
    gc.enable()
    interval_s, frozen = sys.getswitchinterval(), gc.get_freeze_count()
    seen = []

    async def main() -> None:
        seen.append((gc.isenabled(), gc.get_freeze_count() > frozen, sys.getswitchinterval()))

    WallLoop().run(main())
    assert seen == [(False, True, SWITCH_INTERVAL_S)]
    assert gc.isenabled()
    assert (gc.get_freeze_count(), sys.getswitchinterval()) == (0, interval_s)


def test_a_due_timer_does_not_wait_for_all_that_was_posted() -> None:
    loop = WallLoop()
    order: list[str] = []

    def late(name: str) -> None:
        order.append(name)
        time.sleep(0.03)

    async def main() -> None:
        for name in ("first", "second"):
            loop.post(late, name)
        await loop.sleep(0.01)
        order.append("timer")
        await loop.sleep(0.01)

    loop.run(main())
    assert order == ["first", "timer", "second"]
