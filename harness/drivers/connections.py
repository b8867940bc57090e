"""Connections to one server, kept open between answers and opened before they are needed.

Connecting costs a round trip, and with TLS several, that would otherwise be part of a TTFT. A
connection that has been idle for long is not used again: the server may close it as we send.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from typing import Protocol, cast
from urllib.parse import urlsplit

from harness.drivers.io_thread import IoThread, Reader, Transport
from harness.drivers.kernel_stamps import StampedSocket, connected_socket
from harness.engine.tcp import raise_file_limit

IDLE_S = 2.0  # below any server's own limit (vLLM: 5 s)
MAX_OPENING = 16  # at once: opening must not hold up reading
MAX_AHEAD = 1024  # to one server: half of the backlog that vLLM's takes


class User(Reader, Protocol):
    """What waits for a connection, and then gets what it reads."""

    def connected(self, connection: Connection) -> None: ...

    def not_connected(self, error: OSError) -> None: ...


class Connection(asyncio.Protocol):
    """One socket. While idle it has no user, and whatever comes then closes it."""

    def __init__(self, io: IoThread) -> None:
        self._io = io
        self._after_s = 0.0  # what comes now comes after this
        self.user: User | None = None
        self.idle_since_s = 0.0
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.live(cast(asyncio.Transport, transport))  # uvloop's is none by its class

    def live(self, transport: Transport) -> None:
        self._transport = transport
        self._io.transports.add(transport)

    def data_received(self, data: bytes) -> None:
        self.received(data, None)

    def received(self, data: bytes, real_s: float | None) -> None:
        """`real_s`: the kernel's stamp, where there is one."""
        if self.user is None:
            self.close()
        else:
            self._after_s = self._io.keep(self.user, data, real_s=real_s, after_s=self._after_s)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self._io.transports.discard(self._transport)
        if self.user is not None:
            self._io.keep(self.user, None)

    def write(self, data: bytes) -> None:
        self._after_s = time.monotonic()
        self._transport.write(data)

    def close(self) -> None:
        """Drops what was not sent yet."""
        self.user, self.lost = None, True
        self._transport.abort()


class Connections:
    """The connections to the server of `url`; used in the I/O thread alone, but for `prepare`."""

    def __init__(self, url: str, io: IoThread) -> None:
        raise_file_limit()
        parts = urlsplit(url)
        self._io = io
        self._host = parts.hostname or ""
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._ssl else 80)
        self._idle: deque[Connection] = deque()  # the longest idle first
        self._users: deque[User] = deque()  # that wait for a connection
        self._num_opening = 0
        self._num_wanted = 0  # still to be opened ahead

    def lend(self, user: User) -> None:
        """Calls `user.connected` now or soon, or `user.not_connected`."""
        while self._idle:
            connection = self._idle.popleft()  # in turn, so that none grows old and is replaced
            if not connection.lost and time.monotonic() - connection.idle_since_s < IDLE_S:
                user.connected(connection)
                return
            connection.close()
        self._users.append(user)
        self._num_opening += 1
        self._io.start(self._open())

    def give_back(self, connection: Connection) -> None:
        """Takes a connection back after a complete answer; whoever waits longest has it next."""
        connection.user = None
        if connection.lost:
            return
        if self._users:
            self._users.popleft().connected(connection)
            return
        connection.idle_since_s = time.monotonic()
        self._idle.append(connection)

    def want(self, number: int) -> None:
        """Opens as many as lack to have `number` at hand."""
        fresh_s = time.monotonic() - IDLE_S / 2
        while self._idle and (self._idle[0].lost or self._idle[0].idle_since_s < fresh_s):
            self._idle.popleft().close()
        number = min(number, MAX_AHEAD)
        self._num_wanted = max(0, number - len(self._idle) - self._num_opening)
        for _ in range(min(self._num_wanted, MAX_OPENING - self._num_opening)):
            self._open_ahead()

    def prepare(self, number: int) -> None:
        """Opens connections before the run, from its thread: returns when `number` are at hand, or
        raises OSError."""

        async def open_all() -> None:
            last = min(number, MAX_AHEAD)
            for first in range(0, last, MAX_OPENING):
                some = range(first, min(first + MAX_OPENING, last))
                for connection in await asyncio.gather(*(self._connect() for _ in some)):
                    self.give_back(connection)

        asyncio.run_coroutine_threadsafe(open_all(), self._io.loop).result()

    def _open_ahead(self) -> None:
        self._num_wanted -= 1
        self._num_opening += 1
        self._io.start(self._open())

    async def _open(self) -> None:
        try:
            connection = await self._connect()
        except OSError as error:
            self._num_wanted = 0
            if self._users:
                self._users.popleft().not_connected(error)
            return
        finally:
            self._num_opening -= 1
        self.give_back(connection)
        if self._num_wanted > 0 and self._num_opening < MAX_OPENING:
            self._open_ahead()

    async def _connect(self) -> Connection:
        if self._ssl is None:
            sock = await connected_socket(self._io.loop, self._host, self._port)
            plain = Connection(self._io)
            plain.live(StampedSocket(sock, self._io.loop, plain))
            return plain
        _, connection = await self._io.loop.create_connection(
            lambda: Connection(self._io), self._host, self._port, ssl=self._ssl
        )
        return connection
