"""Links that processes share: rate, urgency, and what the death of a holder stops."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from harness.engine import paced_links
from harness.engine.host import memory_file
from harness.engine.paced_links import LinkPath, PacedLinks, table_bytes

CHUNK = 1_000_000
RATE = 20e6  # a chunk takes 50 ms


class Clock:
    """A clock that a sleep moves on."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(paced_links, "time", made)
    return made


@pytest.fixture
def table() -> Iterator[int]:
    with ExitStack() as stack:
        yield memory_file(stack, "links", table_bytes(4))


def path(*links: int) -> LinkPath:
    return LinkPath(links, RATE, 0.0)


def test_messages_of_one_link_take_their_turns(clock: Clock, table: int) -> None:
    links = PacedLinks(table, 4)
    for i in range(1, 5):
        links.carry(path(0, 1), CHUNK)
        assert clock.now_s == pytest.approx(100 + i * CHUNK / RATE, abs=i * 1e-3)


def test_a_booked_message_follows_those_before_and_its_sender_goes_on(
    clock: Clock, table: int
) -> None:
    links, slow = PacedLinks(table, 4), LinkPath((0,), RATE, 0.01)
    arrivals = [links.book(slow, CHUNK) for _ in range(2)]
    assert arrivals == pytest.approx([100 + i * CHUNK / RATE + 0.01 for i in (1, 2)])
    assert clock.now_s == 100
    assert links.book(LinkPath((0,), None, 0.0), CHUNK) == 0


def test_a_latency_comes_on_top(clock: Clock, table: int) -> None:
    PacedLinks(table, 4).carry(LinkPath((0,), RATE, 0.01), CHUNK)
    assert clock.now_s == pytest.approx(100 + CHUNK / RATE + 0.01)


def test_chunks_of_a_copy_follow_each_other_without_a_gap(clock: Clock, table: int) -> None:
    """Latency is paid once, and a sender catches up what it lags, but no more than LAG_S."""
    links, slow = PacedLinks(table, 4), LinkPath((0,), RATE, 0.003)
    over_s = links.carry(slow, CHUNK)
    for i in range(2, 6):
        clock.sleep(0.001)  # the sender's own work
        over_s = links.carry(slow, CHUNK, after_s=over_s)
        assert clock.now_s == pytest.approx(100 + i * CHUNK / RATE + 0.003)
    clock.sleep(1.0)
    idle_until_s = clock.now_s
    links.carry(slow, CHUNK, after_s=over_s)
    assert clock.now_s == pytest.approx(idle_until_s - paced_links.LAG_S + CHUNK / RATE + 0.003)


def test_what_another_had_of_a_link_is_not_caught_up(clock: Clock, table: int) -> None:
    links = PacedLinks(table, 4)
    over_s = links.carry(path(0), CHUNK)
    links.carry(path(0), CHUNK)
    clock.sleep(0.002)
    begin_s = clock.now_s
    links.carry(path(0), CHUNK, after_s=over_s)
    assert clock.now_s == pytest.approx(begin_s + CHUNK / RATE)


def test_links_that_are_not_paced_take_nothing(clock: Clock, table: int) -> None:
    PacedLinks(table, 4).carry(LinkPath((0,), None, 0.0), CHUNK)
    assert clock.now_s == 100


def test_paths_without_a_common_link_do_not_wait(clock: Clock, table: int) -> None:
    links = PacedLinks(table, 4)
    busy_until = links._book((0, 1), CHUNK / RATE, urgent=False)
    assert links._book((2, 3), CHUNK / RATE, urgent=False) == pytest.approx(busy_until)


@pytest.mark.parametrize("num_bulk", [1, 2, 4])
def test_an_urgent_message_waits_for_the_chunk_under_way_however_many_bulk_flows(
    clock: Clock, table: int, num_bulk: int
) -> None:
    """Bulk senders ask again and again; only one of them is ever booked."""
    links = PacedLinks(table, 4)
    booked = [links._book((0, 1), CHUNK / RATE, urgent=False) for _ in range(num_bulk)]
    assert sum(until > 0 for until in booked) == 1
    over_s = links._book((0, 1), 1000 / RATE, urgent=True)
    assert over_s - clock.now_s <= CHUNK / RATE + 1000 / RATE + 1e-9


def test_on_each_link_of_its_path_it_waits_for_one_chunk_at_most(clock: Clock, table: int) -> None:
    links = PacedLinks(table, 4)
    for link in range(3):
        assert links._book((link,), CHUNK / RATE, urgent=False) > 0
    over_s = links._book((0, 1, 2), 0.0, urgent=True)
    assert over_s - clock.now_s <= CHUNK / RATE + 1e-9


def test_the_death_of_a_lock_holder_stops_nobody(table: int) -> None:
    code = (
        "import fcntl, sys, time\n"
        "fcntl.lockf(int(sys.argv[1]), fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "time.sleep(60)\n"
    )
    holder: Any = subprocess.Popen(
        [sys.executable, "-c", code, str(table)], pass_fds=[table], stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(OSError, match="unavailable"):
            fcntl.lockf(table, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        PacedLinks(table, 4).carry(LinkPath((0,), 1e12, 0.0), 1)
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
