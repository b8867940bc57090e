"""Connections from worker to worker: bytes, activations and attention go past the harness.

Every two workers inherit the ends of a socket pair. One thread for each peer always drains its
socket into memory of our own, so that no sender ever waits for compute; what comes is given to
`on_message`, which must not send to a peer: two that sent to each other would both have stopped
reading. What it raises ends the worker (`fail`).
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import torch

from harness.engine.command_loop import Stream
from harness.engine.paced_links import LinkPath, PacedLinks
from harness.engine.transport import Connection, Header

END_S = 30.0  # for the connection of a peer that has died to end

OnMessage = Callable[[str, Header, bytearray], None]


class PeerLost(ConnectionError):
    """The other worker has died."""

    def __init__(self, name: str) -> None:
        super().__init__(f"worker {name} is gone")
        self.name = name


class Mesh:
    """`peers`: the socket, an open file, to each of them by its name."""

    def __init__(
        self, peers: Mapping[str, int], on_message: OnMessage, on_lost: Callable[[str], None],
        fail: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self._on_message, self._on_lost, self._fail = on_message, on_lost, fail
        self._peers = {name: Connection(socket.socket(fileno=file)) for name, file in peers.items()}
        self._lost: set[str] = set()
        self._changed = threading.Condition()

    def start(self) -> None:
        """Begins to read: from here on messages and deaths are told."""
        for name in self._peers:
            threading.Thread(
                target=self._drain, args=(name,), name=f"from {name}", daemon=True
            ).start()

    def send(self, name: str, header: Header, payload: bytes | memoryview = b"") -> None:
        """Raises PeerLost."""
        if name in self._lost:
            raise PeerLost(name)
        try:
            self._peers[name].send(header, payload)
        except (BrokenPipeError, ConnectionResetError):
            raise PeerLost(name) from None

    def is_lost(self, name: str) -> bool:
        return name in self._lost

    def wait_for_end(self, name: str) -> None:
        """Waits until all that the peer, which has died, had sent has been handed on."""
        with self._changed:
            if not self._changed.wait_for(lambda: name in self._lost, END_S):
                raise ConnectionError(f"worker {name} has died, but its connection has not ended")

    def _drain(self, name: str) -> None:
        try:
            while (message := _received(self._peers[name])) is not None:
                self._on_message(name, *message)
            with self._changed:
                self._lost.add(name)
                self._changed.notify_all()
            self._on_lost(name)
        except BaseException as error:
            self._fail(error)


def _received(peer: Connection) -> tuple[Header, bytearray] | None:
    """The next message; None where the peer is gone."""
    try:
        return peer.receive()
    except (EOFError, OSError):
        return None


class Peers:
    """`dtype`, `device`: of the tensors that come."""

    def __init__(
        self, mesh: Mesh, links: PacedLinks, stream: Callable[[str], Stream], dtype: torch.dtype,
        device: torch.device,
    ) -> None:  # fmt: skip
        self._mesh, self._links, self._stream = mesh, links, stream
        self._dtype, self._device = dtype, device

    def send(self, name: str, path: LinkPath, tensor: torch.Tensor, header: Header) -> None:
        """Urgent on the links of `path`. The caller computes on while the message is on the wire.
        Raises PeerLost where it is sent at once."""
        payload = bytes_of(tensor)
        arrival_s = self._links.book(path, len(payload))
        if not arrival_s:
            self._mesh.send(name, header, payload)
            return
        self._stream(f"to {name}").put(lambda: self._deliver(name, header, payload, arrival_s))

    def _deliver(self, name: str, header: Header, payload: bytes, at_s: float) -> None:
        time.sleep(max(0.0, at_s - time.monotonic()))
        with suppress(PeerLost):  # the harness knows of the death, and gives the batch up
            self._mesh.send(name, header, payload)

    def is_lost(self, name: str) -> bool:
        return self._mesh.is_lost(name)

    def tensor(self, payload: bytes, shape: Sequence[int]) -> torch.Tensor:
        flat = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        return flat.view(self._dtype).view(shape).to(self._device)


def bytes_of(tensor: torch.Tensor) -> bytes:
    content: bytes = tensor.contiguous().cpu().view(torch.uint8).numpy().tobytes()
    return content
