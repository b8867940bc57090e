"""Links that processes share: rate, urgency, and what the death of a holder stops."""

from __future__ import annotations

import fcntl
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

import pytest

from harness.engine import bookings, paced_links
from harness.engine.bookings import Bookings, table_bytes
from harness.engine.host import memory_file
from harness.engine.node_files import FarFile, FarHost, OpenFile, serve
from harness.engine.paced_links import FIRST, LinkPath, PacedLinks
from harness.engine.transport import Connection, PeerLost

CHUNK = 1_000_000
RATE = 20e6  # a chunk takes 50 ms
HERE, THERE = "dram0:links", "dram1:links"


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
    for module in (bookings, paced_links):
        monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def table() -> Iterator[int]:
    with ExitStack() as stack:
        yield memory_file(stack, "links", table_bytes(4))


def path(*links: int, latency_s: float = 0.0) -> LinkPath:
    return LinkPath({HERE: links}, RATE, latency_s)


def of_one_host(table: int) -> PacedLinks:
    return PacedLinks({HERE: OpenFile(table)})


def test_messages_of_one_link_take_their_turns(clock: Clock, table: int) -> None:
    links = of_one_host(table)
    for i in range(1, 5):
        links.carry(path(0, 1), CHUNK)
        assert clock.now_s == pytest.approx(100 + i * CHUNK / RATE, abs=i * 1e-3)


def test_a_booked_message_follows_those_before_and_its_sender_goes_on(
    clock: Clock, table: int
) -> None:
    links = of_one_host(table)
    left = [links.book(path(0), CHUNK) for _ in range(2)]
    assert left == pytest.approx([100 + i * CHUNK / RATE for i in (1, 2)])
    assert clock.now_s == 100
    assert links.book(path(0), CHUNK, far=True) == 0


def test_a_latency_comes_on_top(clock: Clock, table: int) -> None:
    of_one_host(table).carry(path(0, latency_s=0.01), CHUNK)
    assert clock.now_s == pytest.approx(100 + CHUNK / RATE + 0.01)


def test_chunks_of_a_copy_follow_each_other_without_a_gap(clock: Clock, table: int) -> None:
    """Latency is paid once, and a sender catches up what it lags, but no more than LAG_S."""
    links, slow = of_one_host(table), path(0, latency_s=0.003)
    over = links.carry(slow, CHUNK)
    for i in range(2, 6):
        clock.sleep(0.001)  # the sender's own work
        over = links.carry(slow, CHUNK, after=over)
        assert clock.now_s == pytest.approx(100 + i * CHUNK / RATE + 0.003)
    clock.sleep(1.0)
    idle_until_s = clock.now_s
    links.carry(slow, CHUNK, after=over)
    assert clock.now_s == pytest.approx(idle_until_s - bookings.LAG_S + CHUNK / RATE + 0.003)


def test_what_another_had_of_a_link_is_not_caught_up(clock: Clock, table: int) -> None:
    links = of_one_host(table)
    over = links.carry(path(0), CHUNK)
    links.carry(path(0), CHUNK)
    clock.sleep(0.002)
    begin_s = clock.now_s
    links.carry(path(0), CHUNK, after=over)
    assert clock.now_s == pytest.approx(begin_s + CHUNK / RATE)


def test_links_that_are_not_paced_take_nothing(clock: Clock, table: int) -> None:
    of_one_host(table).carry(LinkPath({HERE: (0,)}, None, 0.0), CHUNK)
    assert clock.now_s == 100


def test_paths_without_a_common_link_do_not_wait(clock: Clock, table: int) -> None:
    links = Bookings(table)
    busy_until = links.book((0, 1), CHUNK / RATE, urgent=False).at_s
    assert links.book((2, 3), CHUNK / RATE, urgent=False).over_s == pytest.approx(busy_until)


@pytest.mark.parametrize("num_bulk", [1, 2, 4])
def test_an_urgent_message_waits_for_the_chunk_under_way_however_many_bulk_flows(
    clock: Clock, table: int, num_bulk: int
) -> None:
    """Bulk senders ask again and again; only one of them is ever booked."""
    links = Bookings(table)
    booked = [links.book((0, 1), CHUNK / RATE, urgent=False).over_s for _ in range(num_bulk)]
    assert sum(until is not None for until in booked) == 1
    over_s = links.book((0, 1), 1000 / RATE, urgent=True).at_s
    assert over_s - clock.now_s <= CHUNK / RATE + 1000 / RATE + 1e-9


def test_on_each_link_of_its_path_it_waits_for_one_chunk_at_most(clock: Clock, table: int) -> None:
    links = Bookings(table)
    for link in range(3):
        assert links.book((link,), CHUNK / RATE, urgent=False).over_s is not None
    over_s = links.book((0, 1, 2), 0.0, urgent=True).at_s
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
        of_one_host(table).carry(LinkPath({HERE: (0,)}, 1e12, 0.0), 1)
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


@contextmanager
def senders_to_one_host(number: int, rate: float = RATE) -> Iterator[tuple[list[PacedLinks], Any]]:
    """Senders on a host each, with a table of its own, and the path from each to one more host,
    which has a table as well."""
    with ExitStack() as stack:
        there = memory_file(stack, "links", table_bytes(4))
        tables: dict[str, Bookings] = {}
        senders = []
        for _ in range(number):
            ours, theirs = socket.socketpair()
            thread = threading.Thread(target=serve, args=(theirs, {THERE: there}, tables))
            thread.start()
            stack.callback(thread.join)
            stack.callback(ours.close)  # which ends the thread
            here = OpenFile(memory_file(stack, "links", table_bytes(4)))
            senders.append(PacedLinks({HERE: here, THERE: FarFile(THERE, FarHost(ours))}))
        yield senders, LinkPath({HERE: (0, 1), THERE: (2, 3)}, rate, 0.0)


def test_urgent_messages_to_one_host_take_turns_on_its_links_and_not_on_their_own() -> None:
    with senders_to_one_host(3) as (senders, way):
        left = [sender.book(way, CHUNK) for sender in senders]
        came = [sender.book(way, CHUNK, far=True) for sender in senders]
    assert left[-1] - left[0] < CHUNK / RATE
    for one, other in pairwise(came):
        assert other - one > 0.9 * CHUNK / RATE  # less the time of an answer


def test_all_who_send_to_a_host_share_its_links() -> None:
    """However many, they are no faster than one: chunks are booked one behind another."""
    num_senders, num_chunks, busy_s = 3, 5, 0.01
    ends: list[float] = []

    def send(sender: PacedLinks, way: LinkPath) -> None:
        over = FIRST
        for _ in range(num_chunks):
            over = sender.carry(way, CHUNK, after=over)
        ends.append(over[THERE])

    begin_s = time.monotonic()
    with senders_to_one_host(num_senders, CHUNK / busy_s) as (senders, way):
        threads = [threading.Thread(target=send, args=(sender, way)) for sender in senders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert max(ends) - begin_s >= num_senders * num_chunks * busy_s
    assert time.monotonic() >= max(ends)


def test_times_of_another_host_are_by_its_clock_alone() -> None:
    """Its answer says how long from now; what was said of the chunk before goes back as it came."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        other = Connection(theirs)
        sender = PacedLinks({THERE: FarFile(THERE, FarHost(ours))})
        way = LinkPath({THERE: (2,)}, RATE, 0.0)
        asked: list[tuple[float | None, float]] = []

        def answer() -> None:
            for said in ({"over_s": None, "left_s": 0.01}, {"over_s": 9e9, "left_s": 0.02}) * 2:
                header, _ = other.receive()
                asked.append((header["how"]["after_s"], time.monotonic()))
                other.send(said)

        thread = threading.Thread(target=answer)
        thread.start()
        over = sender.carry(way, CHUNK, after=sender.carry(way, CHUNK))
        thread.join()
    assert over == {THERE: 9e9}
    assert [after for after, _ in asked] == [None, None, 9e9, 9e9]
    waited = [later - earlier for (_, earlier), (_, later) in pairwise(asked)]
    assert all(wait >= least for wait, least in zip(waited, (0.01, 0.02, 0.01), strict=True))


def test_a_host_that_has_died_breaks_off_what_goes_to_it() -> None:
    with senders_to_one_host(1) as ((sender,), way):
        far: Any = sender._tables[THERE]
        far._host._connection._sock.shutdown(socket.SHUT_RDWR)
        for _ in range(2):
            with pytest.raises(PeerLost):
                sender.carry(way, CHUNK)
        with pytest.raises(PeerLost):
            sender.book(way, CHUNK, far=True)
