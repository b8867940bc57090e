"""Messages between the harness and a worker process, or two workers, over one stream of bytes.

A message is a header in JSON and the bytes of a tensor or none, each prefixed by its length: what
comes may be odd, but never runs. The socket has been connected by a launcher. Knows nothing of what
the messages mean.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

LENGTHS = struct.Struct("<II")  # of the header and the payload, in bytes

HEARTBEAT_S = 1.0  # how often a worker says that it runs

Header = dict[str, Any]
T = TypeVar("T")


def _bounds(value: Any) -> Any:
    if isinstance(value, range):
        return value.start, value.stop
    raise TypeError(f"{value!r} is nothing that a message can hold")


def _range(kind: type, value: Any) -> Any:
    return range(*value) if kind is range else value


ENCODE = msgspec.json.Encoder(enc_hook=_bounds).encode
DECODE = msgspec.json.Decoder().decode


def of_kind(kind: type[T], value: Any) -> T:
    """What was sent as a `kind`, a dataclass or named tuple. Without this it is plain lists and
    dicts, whose keys are text. An infinite number comes as None."""
    return msgspec.convert(value, kind, str_keys=True, dec_hook=_range)


class PeerLost(ConnectionError):
    """The other worker, or the host of a file, has died."""


class Connection:
    """One end. Several threads may send; one receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()

    def send(self, header: Mapping[str, Any], payload: bytes | memoryview = b"") -> None:
        """Raises BrokenPipeError where the other end is gone, or no way leads to it any more."""
        content = ENCODE(header)
        try:
            with self._lock:
                self._sock.sendall(LENGTHS.pack(len(content), len(payload)) + content)
                if payload:
                    self._sock.sendall(payload)
        except OSError as error:
            raise BrokenPipeError(f"the other end is gone: {error}") from error

    def receive(self) -> tuple[Header, bytearray]:
        """Blocks for the next message. Raises EOFError when the other end is gone."""
        header_bytes, payload_bytes = LENGTHS.unpack(self._exactly(LENGTHS.size))
        header: Header = DECODE(self._exactly(header_bytes))
        return header, self._exactly(payload_bytes)

    def poll(self, timeout_s: float) -> bool:
        """Whether `receive` has something to read, an end of file included."""
        readable, _, _ = select.select([self._sock], [], [], timeout_s)
        return bool(readable)

    def close(self) -> None:
        self._sock.close()

    def _exactly(self, num_bytes: int) -> bytearray:
        content = bytearray(num_bytes)
        left = memoryview(content)
        while left:
            try:
                read = self._sock.recv_into(left)
            except OSError as error:  # no way to it among them, or no answer
                raise EOFError(f"the other end is gone: {error}") from error
            if not read:
                raise EOFError("the other end has closed")
            left = left[read:]
        return content
