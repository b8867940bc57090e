"""A stamp is the time at which the kernel got the bytes, however late they are read."""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from harness.clock import WallLoop
from harness.drivers import kernel_stamps
from harness.drivers.connections import Connection, Connections
from harness.drivers.io_thread import IoThread, record_lateness
from harness.records.record import Recorder


@pytest.fixture
def stamping() -> Iterator[None]:
    """The kernel has begun to stamp."""
    if sys.platform != "linux":
        pytest.skip("only Linux stamps what it reads")
    with socket.socket(type=socket.SOCK_DGRAM) as own:
        kernel_stamps.ask_for_stamps(own)
        time.sleep(0.1)
        yield


class User:
    """Keeps what it reads, and when each came."""

    def __init__(self) -> None:
        self.reads: list[tuple[float, bytes | None, float]] = []
        self.lent, self.read, self.lost = (threading.Event() for _ in range(3))

    def connected(self, connection: Connection) -> None:
        self.connection, connection.user = connection, self
        self.lent.set()

    def not_connected(self, error: OSError) -> None:
        raise error

    def parse(self, read_s: float, data: bytes | None, since_s: float) -> None:
        self.reads.append((read_s, data, since_s))
        self.read.set()
        if data is None:
            self.lost.set()

    def wait(self) -> None:
        """For something read. An end that comes before is read with it, and has its stamp."""
        assert self.read.wait(10)


@contextmanager
def connected() -> Iterator[tuple[IoThread, User, socket.socket, Recorder]]:
    recorder, loop = Recorder([]), WallLoop()
    with socket.create_server(("127.0.0.1", 0)) as listener, IoThread(loop) as io:
        user, port = User(), listener.getsockname()[1]
        io.call(Connections(f"http://127.0.0.1:{port}/v1", io).lend, user)
        peer, _ = listener.accept()
        with peer:
            assert user.lent.wait(10)
            yield io, user, peer, recorder
    record_lateness([io.lateness()], loop, recorder)


def sent_while_blocked(io: IoThread, peer: socket.socket, *pieces: bytes) -> list[float]:
    """The thread reads nothing meanwhile. Times before and after each of `pieces` is sent."""
    blocked, free = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        free.wait()

    io.call(block)
    assert blocked.wait(10)
    times_s = [time.monotonic()]
    for piece in pieces:
        peer.sendall(piece)
        time.sleep(0.05)
        times_s.append(time.monotonic())
    time.sleep(0.05)
    free.set()
    return times_s


@pytest.mark.usefixtures("stamping")
def test_a_late_thread_makes_no_stamp_late() -> None:
    with connected() as (io, user, peer, recorder):
        before_s, after_s = sent_while_blocked(io, peer, b"token")
        user.wait()
    (read_s, data, _), *_ = user.reads
    assert data == b"token"
    assert before_s <= read_s <= after_s
    (heart,) = (event for event in recorder.events if event["kind"] == "heartbeat")
    assert heart["fields"]["stamped_by"] == "kernel"


@pytest.mark.usefixtures("stamping")
def test_what_was_read_together_has_the_last_stamp_and_says_since_when_it_may_have_come() -> None:
    with connected() as (io, user, peer, _):
        before_s, between_s, after_s = sent_while_blocked(io, peer, b"one", b"two")
        user.wait()
    (read_s, data, since_s), *_ = user.reads
    assert data == b"onetwo"
    assert since_s <= before_s <= between_s <= read_s <= after_s


def test_where_the_kernel_gives_no_stamps_the_client_stamps_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel_stamps, "SO_TIMESTAMPNS", 9999)  # no such option
    with connected() as (io, user, peer, recorder):
        *_, after_s = sent_while_blocked(io, peer, b"token")
        user.wait()
    (read_s, _, since_s), *_ = user.reads
    assert read_s == since_s > after_s
    (heart,) = (event for event in recorder.events if event["kind"] == "heartbeat")
    assert heart["fields"]["stamped_by"] == "client"


def test_a_reset_right_behind_data_ends_the_connection_once_all_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel_stamps, "READ_BYTES", 2)
    with connected() as (io, user, peer, _):
        blocked, free = threading.Event(), threading.Event()
        io.call(lambda: (blocked.set(), free.wait()))
        assert blocked.wait(10)
        peer.sendall(b"token")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()  # data and reset are there when the thread looks at the socket
        free.set()
        assert user.lost.wait(10)
    assert b"".join(data or b"" for _, data, _ in user.reads) == b"token"
    assert [data for _, data, _ in user.reads].index(None) == 3


def test_a_message_that_the_kernel_does_not_take_at_once_is_sent_whole_and_in_order() -> None:
    message = b"".join(b"%08d" % i for i in range(1 << 20))
    got = bytearray()
    with connected() as (io, user, peer, _):
        io.call(user.connection.write, message)
        io.call(user.connection.write, b"end")
        while len(got) < len(message) + 3:
            got += peer.recv(1 << 20)
    assert got == message + b"end"


def test_what_is_to_be_sent_goes_before_what_is_to_be_parsed() -> None:
    done: list[str] = []

    class Parser:
        def parse(self, read_s: float, data: bytes | None, since_s: float) -> None:
            done.append(f"parse {len(done)}")
            if len(done) == 1:
                io.urge(done.append, "send")

    with IoThread(WallLoop()) as io:

        def two_reads() -> None:
            io.keep(Parser(), b"one")
            io.keep(Parser(), b"two")

        io.call(two_reads)
        while len(done) < 3:
            time.sleep(0.01)
    assert done == ["parse 0", "send", "parse 2"]
