"""Connections from worker to worker, between threads of this process."""

from __future__ import annotations

import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch

from harness.engine import mesh
from harness.engine.mesh import Mesh, Peers
from harness.engine.paced_links import LinkPath
from harness.engine.transport import Connection, Header, PeerLost

WAIT_S = 20.0
CPU = torch.device("cpu")


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


class Jobs:
    """A stream whose jobs wait until the test runs them."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.put = self.waiting.append

    def run(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


class Links:
    """Of two hosts, each message on them for a second. `far`: how many the other host has booked;
    None: it has died."""

    def __init__(self) -> None:
        self.near_s = self.far_s = 100.0
        self.far: int | None = 0

    def book(self, path: LinkPath, num_bytes: int, *, far: bool = False) -> float:
        if not far:
            self.near_s += 1.0
            return self.near_s
        if self.far is None:
            raise PeerLost("it is gone")
        self.far, self.far_s = self.far + 1, self.far_s + 1.0
        return self.far_s


class Sent:
    """A mesh, and the clock by which it is sent into."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.at_s: list[tuple[int, float]] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def send(self, name: str, header: Header, payload: bytes) -> None:
        self.at_s.append((header["number"], self.now_s))


def sending(
    path: LinkPath, monkeypatch: pytest.MonkeyPatch
) -> tuple[Sent, Links, defaultdict[str, Jobs]]:
    """Three messages that a worker has sent to b by `path`."""
    sent, links, streams = Sent(), Links(), defaultdict[str, Jobs](Jobs)
    monkeypatch.setattr(mesh, "time", sent)
    given: list[Any] = [sent, links, streams.__getitem__, torch.float32, CPU]
    made = Peers(*given)
    for number in range(3):
        made.send("b", path, torch.zeros(4), {"number": number})
    return sent, links, streams


def test_messages_to_another_host_are_on_their_way_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each takes its time on the links, and all of them one latency: as in the simulator."""
    to_far = LinkPath({"here": (0,), "there": (1,)}, 16.0, 30.0)
    sent, links, streams = sending(to_far, monkeypatch)
    streams["links to b"].run()
    assert links.far == 3
    assert not sent.at_s, "booked while the first is on its way"
    streams["to b"].run()
    assert sent.at_s == [(0, 131.0), (1, 132.0), (2, 133.0)]


def test_messages_of_one_host_ask_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, links, streams = sending(LinkPath({"here": (0, 1)}, 16.0, 30.0), monkeypatch)
    assert set(streams) == {"to b"}
    streams["to b"].run()
    assert sent.at_s == [(0, 131.0), (1, 132.0), (2, 133.0)]
    assert links.far == 0


def test_messages_to_a_host_that_has_died_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    to_far = LinkPath({"here": (0,), "there": (1,)}, 16.0, 30.0)
    sent, links, streams = sending(to_far, monkeypatch)
    links.far = None
    streams["links to b"].run()
    streams["to b"].run()
    assert not sent.at_s
