"""Connections from worker to worker, between threads of this process."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

import pytest

from harness.engine.mesh import Mesh, PeerLost
from harness.engine.transport import Connection, Header

WAIT_S = 20.0


class Worker:
    """One end of a mesh, whose peer is this test."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.got: list[tuple[Header, bytes]] = []
        self.lost: list[str] = []
        self.failed = threading.Event()
        self._pause_s = pause_s
        ours, theirs = socket.socketpair()
        self.peer = Connection(ours)
        peers = {"b": theirs.detach()}
        self.mesh = Mesh(peers, self._take, self.lost.append, lambda error: self.failed.set())
        self.mesh.start()

    def _take(self, name: str, header: Header, payload: bytes) -> None:
        time.sleep(self._pause_s)
        if header["op"] == "odd":
            raise ConnectionResetError("not the peer's")
        self.got.append((header, payload))


def test_what_a_dead_peer_had_sent_is_handed_on_before_its_end() -> None:
    worker = Worker(pause_s=0.01)
    peer = worker.peer
    worker.mesh.send("b", {"op": "hello"})
    for number in range(20):
        peer.send({"op": "bytes", "at": number})
    peer.receive()
    peer.close()
    worker.mesh.wait_for_end("b")
    assert [header["at"] for header, _ in worker.got] == list(range(20))
    with pytest.raises(PeerLost):
        worker.mesh.send("b", {"op": "hello"})


def test_an_error_of_our_own_is_not_taken_for_the_peers_death() -> None:
    worker = Worker()
    peer = worker.peer
    worker.mesh.send("b", {"op": "hello"})
    peer.send({"op": "odd"})
    assert worker.failed.wait(WAIT_S)
    assert not worker.lost
    with suppress(OSError):
        peer.close()
