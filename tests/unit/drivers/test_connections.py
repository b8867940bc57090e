"""Connections are there before they are needed, and none is used that may be closed."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from harness.clock import WallLoop
from harness.drivers import connections as module
from harness.drivers.connections import Connection, Connections
from harness.drivers.io_thread import IoThread, record_lateness
from harness.drivers.replay import needed
from harness.records.record import Recorder
from harness.selftest.golden_server import GoldenServer
from harness.selftest.script import Script

pytestmark = [pytest.mark.live, pytest.mark.alone]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection grows too old while a busy machine runs these tests."""
    monkeypatch.setattr(module, "IDLE_S", 600.0)


def test_what_is_needed_is_what_comes_within_the_lead() -> None:
    arrivals_s = [0.0, 0.25, 0.5, 0.5, 0.75, 3.0]
    assert needed(arrivals_s, -1e-9) == 2
    assert needed(arrivals_s, 0.0) == 3
    assert needed(arrivals_s, 0.3) == 3
    assert needed(arrivals_s, 3.0) == 0
    assert needed([], 0.0) == 0


class Borrower:
    """Keeps what it is lent."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.error: OSError | None = None
        self.served = threading.Event()

    def connected(self, connection: Connection) -> None:
        self.connection = connection
        self.served.set()

    def not_connected(self, error: OSError) -> None:
        self.error = error
        self.served.set()

    def parse(self, read_s: float, data: bytes | None, since_s: float) -> None:
        pass


@contextmanager
def pool() -> Iterator[tuple[Connections, IoThread, GoldenServer]]:
    with GoldenServer(lambda _: Script()) as server, IoThread(WallLoop()) as io:
        yield Connections(server.url, io), io, server


def lent(connections: Connections, io: IoThread) -> Borrower:
    borrower = Borrower()
    io.call(connections.lend, borrower)
    assert borrower.served.wait(10)
    return borrower


def inside(io: IoThread, function: Callable[[], object]) -> object:
    """What `function` gives in the I/O thread."""

    async def call() -> object:
        return function()

    return asyncio.run_coroutine_threadsafe(call(), io.loop).result(10)


def until(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_what_was_prepared_is_lent_without_connecting() -> None:
    with pool() as (connections, io, _):
        connections.prepare(40)
        opened = len(io.transports)
        borrowers = [lent(connections, io) for _ in range(40)]
        assert opened == len(io.transports) == 40
        assert len({id(borrower.connection) for borrower in borrowers}) == 40
        assert lent(connections, io).connection is not None  # one more is opened
        assert len(io.transports) == 41


def test_a_wish_opens_what_lacks_and_no_more() -> None:
    with pool() as (connections, io, _):
        connections.prepare(3)
        io.call(connections.want, 50)
        until(lambda: len(io.transports) == 50)
        inside(io, lambda: connections.want(50))
        time.sleep(0.05)
        assert len(io.transports) == 50


def test_a_connection_idle_for_long_or_closed_by_the_server_is_not_lent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pool() as (connections, io, _):
        connections.prepare(1)
        first = lent(connections, io).connection
        assert first is not None
        inside(io, lambda: connections.give_back(cast(Connection, first)))
        assert lent(connections, io).connection is first
        inside(io, lambda: connections.give_back(cast(Connection, first)))
        monkeypatch.setattr(module, "IDLE_S", 0.0)
        assert lent(connections, io).connection is not first


def test_a_stall_covers_all_the_time_in_which_nothing_was_read() -> None:
    recorder, loop = Recorder([]), WallLoop()
    blocked: list[float] = []

    def block() -> None:
        blocked.append(loop.now)
        time.sleep(0.01)
        blocked.append(loop.now)

    with IoThread(loop) as io:
        for _ in range(5):
            inside(io, block)
        inside(io, lambda: None)
        time.sleep(0.01)
    record_lateness([io.lateness()], loop, recorder)
    stalls = [(e["start_s"], e["end_s"]) for e in recorder.events if e["kind"] == "stall"]
    for began_s, ended_s in zip(blocked[::2], blocked[1::2], strict=True):
        assert any(start_s <= began_s and ended_s <= end_s for start_s, end_s in stalls)


def test_what_is_given_back_goes_to_who_waits() -> None:
    with pool() as (connections, io, _):
        first = lent(connections, io).connection
        waiting = Borrower()

        def wait_and_give() -> None:
            connections.lend(waiting)  # a connection is opened for it, and not waited for
            connections.give_back(cast(Connection, first))

        inside(io, wait_and_give)
        assert waiting.connection is first


def test_a_steady_load_opens_each_connection_once() -> None:
    with pool() as (connections, io, _):
        connections.prepare(4)
        before = set(io.transports)
        for _ in range(20):
            connection = lent(connections, io).connection
            inside(io, lambda c=connection: connections.give_back(c))
            inside(io, lambda: connections.want(4))
        assert set(io.transports) == before


def test_where_nothing_listens_the_borrower_is_told() -> None:
    with socket.socket() as held, IoThread(WallLoop()) as io:
        held.bind(("127.0.0.1", 0))  # bound, not listening: refused
        connections = Connections(f"http://127.0.0.1:{held.getsockname()[1]}/v1", io)
        assert lent(connections, io).error is not None
        with pytest.raises(OSError, match=r"refused|111"):
            connections.prepare(1)
