"""Connections from worker to worker, between threads of this process."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

import pytest

from harness.engine.mesh import Mesh
from harness.engine.transport import Connection, Header, PeerLost

WAIT_S = 20.0


class Worker:
    """One end of a mesh, whose peer is this test."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.got: list[tuple[Header, bytes]] = []
        self.lost: list[str] = []
        self.failed = threading.Event()
        self._pause_s = pause_s
        self._invitations, theirs = socket.socketpair()
        self.mesh = Mesh(theirs, self._take, self.lost.append, lambda error: self.failed.set())

    def invite(self, name: str) -> Connection:
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._invitations, [name.encode()], [theirs.fileno()])
        return Connection(ours)

    def _take(self, name: str, header: Header, payload: bytes) -> None:
        time.sleep(self._pause_s)
        if header["op"] == "odd":
            raise ConnectionResetError("not the peer's")
        self.got.append((header, payload))


def test_what_a_dead_peer_had_sent_is_handed_on_before_its_end() -> None:
    worker = Worker(pause_s=0.01)
    peer = worker.invite("b")
    worker.mesh.send("b", {"op": "hello"})
    for number in range(20):
        peer.send({"op": "bytes", "at": number})
    peer.receive()
    peer.close()
    worker.mesh.wait_for_end("b")
    assert [header["at"] for header, _ in worker.got] == list(range(20))
    with pytest.raises(PeerLost):
        worker.mesh.send("b", {"op": "hello"})


def test_a_death_told_before_the_connection_has_come_is_waited_for() -> None:
    """What the dead one had sent before is read first, and not into pages of others later."""
    worker = Worker(pause_s=0.01)
    waiting = threading.Thread(target=worker.mesh.wait_for_end, args=("b",), daemon=True)
    waiting.start()
    peer = worker.invite("b")
    for number in range(5):
        peer.send({"op": "bytes", "at": number})
    peer.close()
    waiting.join(WAIT_S)
    assert not waiting.is_alive()
    assert [header["at"] for header, _ in worker.got] == list(range(5))


def test_an_error_of_our_own_is_not_taken_for_the_peers_death() -> None:
    worker = Worker()
    peer = worker.invite("b")
    worker.mesh.send("b", {"op": "hello"})
    peer.send({"op": "odd"})
    assert worker.failed.wait(WAIT_S)
    assert not worker.lost
    with suppress(OSError):
        peer.close()
