"""A plain TCP socket whose reads carry the time at which the kernel got them (SO_TIMESTAMPNS).

However late the client reads, such a stamp is not late: the kernel takes it when the packet comes
in. Where it gives none (other systems than Linux, some sandboxes) the time of the read counts, and
so does it with TLS, whose bytes are read by OpenSSL.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from contextlib import suppress
from typing import Protocol

SO_TIMESTAMPNS = 35  # linux/asm-generic/socket.h; Python's socket has no name for it
TIMESPEC = struct.Struct("@ll")
NOTE_BYTES = socket.CMSG_SPACE(TIMESPEC.size) if hasattr(socket, "CMSG_SPACE") else 0
READ_BYTES = 1 << 16


class Listener(Protocol):
    def received(self, data: bytes, real_s: float | None) -> None:
        """`real_s`: when the last of `data` came, of time.time(); None: nobody knows."""

    def connection_lost(self, error: Exception | None) -> None: ...


def ask_for_stamps(sock: socket.socket) -> None:
    """The kernel begins to stamp some milliseconds after the first open socket of all asks."""
    with suppress(OSError):  # then no stamps come, and the listener is told so at each read
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


async def connected_socket(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """A socket connected to the first address of `host` that takes a connection. Raises OSError."""
    error = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, address)
        except BaseException as failure:
            sock.close()
            if not isinstance(failure, OSError):
                raise
            error = failure
            continue
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    raise error


class StampedSocket:
    """Reads and writes `sock`, which is connected, from now on. In the loop's thread alone."""

    def __init__(
        self, sock: socket.socket, loop: asyncio.AbstractEventLoop, listener: Listener
    ) -> None:
        self._sock, self._loop, self._listener = sock, loop, listener
        self._unsent = b""
        self._closed = False
        ask_for_stamps(sock)
        loop.add_reader(sock, self._read)

    def write(self, data: bytes) -> None:
        """What the kernel does not take now is sent when it does."""
        if self._unsent or self._closed:
            self._unsent += data
            return
        self._unsent = data
        self._send()
        if self._unsent and not self._closed:
            self._loop.add_writer(self._sock, self._send)

    def abort(self) -> None:
        """Drops what was not sent yet; the listener is told, later, that the connection is lost."""
        self._close(None)

    def _read(self) -> None:
        """Reads once; of a socket with an error all that came before it, for libuv, which uvloop
        polls by, does not call again: a reset right behind data would be missed."""
        failed = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        while self._read_some() and failed:
            pass
        if failed:
            self._close(OSError(failed, os.strerror(failed)))

    def _read_some(self) -> bool:
        """Whether there was anything, and there may be more."""
        if self._closed:
            return False
        try:
            data, notes, _, _ = self._sock.recvmsg(READ_BYTES, NOTE_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._close(error)
            return False
        if data:
            self._listener.received(data, _stamp_s(notes))
        else:
            self._close(None)
        return bool(data)

    def _send(self) -> None:
        try:
            sent = self._sock.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._close(error)
            return
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._loop.remove_writer(self._sock)

    def _close(self, error: Exception | None) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        self._loop.call_soon(self._listener.connection_lost, error)


def _stamp_s(notes: list[tuple[int, int, bytes]]) -> float | None:
    """The stamp that recvmsg gave beside the data, on the clock of time.time(); None: there is
    none."""
    for _, kind, note in notes:
        if kind == SO_TIMESTAMPNS and len(note) >= TIMESPEC.size:
            seconds, nanoseconds = TIMESPEC.unpack_from(note)
            return float(seconds + nanoseconds / 1e9)
    return None
