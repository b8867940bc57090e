"""Connections from worker to worker: bytes, activations and attention go past the harness.

The harness hands each two workers a connection before the run. One thread for each
peer always drains its socket into memory of our own, so that no sender ever waits for compute;
what comes is given to `on_message`, which must not send to a peer: two that sent to each other
would both have stopped reading. What it raises ends the worker (`fail`).
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch

from harness.engine.command_loop import Stream
from harness.engine.paced_links import LinkPath, PacedLinks
from harness.engine.transport import Connection, Header, PeerLost

ARRIVE_S = 30.0  # for a connection that the harness has promised

OnMessage = Callable[[str, Header, bytearray], None]  # of whom, and what came


class Mesh:
    """`invitations`: a socket over which the harness sends the peers' names and sockets."""

    def __init__(
        self, invitations: socket.socket, on_message: OnMessage, on_lost: Callable[[str], None],
        fail: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self._on_message, self._on_lost, self._fail = on_message, on_lost, fail
        self._peers: dict[str, Connection] = {}
        self._lost: set[str] = set()
        self._changed = threading.Condition()
        self._start(self._accept, (invitations,), "invitations")

    def send(self, name: str, header: Header, payload: bytes | memoryview = b"") -> None:
        """Raises PeerLost."""
        with self._changed:
            if not self._changed.wait_for(
                lambda: name in self._peers or name in self._lost, ARRIVE_S
            ):
                raise ConnectionError(f"worker {name} was never connected")
            if name in self._lost:
                raise PeerLost(f"worker {name} is gone")
            peer = self._peers[name]
        try:
            peer.send(header, payload)
        except BrokenPipeError:
            raise PeerLost(f"worker {name} is gone") from None

    def is_lost(self, name: str) -> bool:
        return name in self._lost

    def wait_for_end(self, name: str) -> None:
        """Waits until all that the peer, which has died, had sent has been handed on. The harness
        has connected it, but its invitation may be yet to be taken."""
        with self._changed:
            if not self._changed.wait_for(lambda: name in self._lost, ARRIVE_S):
                raise ConnectionError(f"worker {name} has died, but its connection has not ended")

    def _accept(self, invitations: socket.socket) -> None:
        while True:
            name, files, _, _ = socket.recv_fds(invitations, 256, 1)
            if not files:
                return  # the harness is gone
            peer = Connection(socket.socket(fileno=files[0]))
            with self._changed:
                self._peers[name.decode()] = peer
                self._changed.notify_all()
            self._start(self._drain, (name.decode(), peer), f"from {name.decode()}")

    def _drain(self, name: str, peer: Connection) -> None:
        try:
            while (message := _received(peer)) is not None:
                self._on_message(name, *message)
            with self._changed:
                self._lost.add(name)
                self._changed.notify_all()
            self._on_lost(name)
        except BaseException as error:
            self._fail(error)

    @staticmethod
    def _start(target: Callable[..., None], arguments: tuple[object, ...], name: str) -> None:
        threading.Thread(target=target, args=arguments, name=name, daemon=True).start()


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
        if path.bytes_per_s is None:
            self._mesh.send(name, header, payload)
            return
        left_s = self._links.book(path, len(payload))
        if len(path.links) == 1:  # all are this host's, and booked
            self._deliver(name, header, payload, left_s + path.latency_s)
            return

        def book() -> None:  # the next one is booked while this one is on its way
            with suppress(PeerLost):  # the harness knows of the death, and gives the batch up
                far_s = self._links.book(path, len(payload), far=True)
                self._deliver(name, header, payload, max(left_s, far_s) + path.latency_s)

        self._stream(f"links to {name}").put(book)

    def _deliver(self, name: str, header: Header, payload: bytes, at_s: float) -> None:
        """Sends it once it is there, behind those before; returns at once."""

        def send() -> None:
            with suppress(PeerLost):  # as above
                time.sleep(max(0.0, at_s - time.monotonic()))
                self._mesh.send(name, header, payload)

        self._stream(f"to {name}").put(send)

    def is_lost(self, name: str) -> bool:
        return self._mesh.is_lost(name)

    def tensor(self, payload: bytes, shape: Sequence[int]) -> torch.Tensor:
        flat = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        return flat.view(self._dtype).view(shape).to(self._device)


def bytes_of(tensor: torch.Tensor) -> bytes:
    content: bytes = tensor.contiguous().cpu().view(torch.uint8).numpy().tobytes()
    return content
