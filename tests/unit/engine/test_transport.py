"""Messages come as they were sent, and what comes never runs."""

from __future__ import annotations

import errno
import pickle
import socket
from collections.abc import Iterator
from math import inf
from typing import Any

import msgspec
import pytest

from harness.engine.paced_links import LinkPath
from harness.engine.transport import LENGTHS, Connection, of_kind
from harness.engine.work import BatchWork, Chunk, Part, StageWork

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_stages_work_comes_as_it_was_sent(pair: Pair) -> None:
    path = LinkPath({"dram0:links": (3, 4), "dram1:links": (5,)}, 1e9 / 3, 1e-6)
    batch = BatchWork([Chunk(0, 5, True)], [7, 9], [1, 2, 3], [[4, 5], [6], []])
    work = StageWork(
        8, batch, range(2, 6), 2, 20, 0.1 + 0.2, {1: [Part("a", [0], [], [[4]])], 2: []},
        None, "b", "a", path, {"b": path},
    )  # fmt: skip
    ours, theirs = map(Connection, pair)
    ours.send({"op": "stage", "work": work}, b"bytes")
    header, payload = theirs.receive()
    got = of_kind(StageWork, header["work"])
    assert got == work
    assert isinstance(got.batch.chunks[0], Chunk)
    assert payload == b"bytes"
    theirs.send({"deadline_s": inf})
    assert ours.receive()[0] == {"deadline_s": None}


def test_a_pickle_is_no_message_and_an_object_is_not_sent(pair: Pair) -> None:
    ours, theirs = pair
    content = pickle.dumps({"op": "alive"})
    ours.sendall(LENGTHS.pack(len(content), 0) + content)
    with pytest.raises(msgspec.DecodeError):
        Connection(theirs).receive()
    with pytest.raises(TypeError, match="nothing that a message can hold"):
        Connection(ours).send({"op": object()})


class Unreachable(socket.socket):
    """Its link has broken: the system says so by an error that Python has no class for."""

    def _lost(self, *asked: Any) -> Any:
        raise OSError(errno.EHOSTUNREACH, "No route to host")

    sendall = recv_into = _lost


def test_a_peer_that_no_way_leads_to_is_gone() -> None:
    with Unreachable() as sock:
        connection = Connection(sock)
        with pytest.raises(EOFError):
            connection.receive()
        with pytest.raises(BrokenPipeError, match="No route to host"):
            connection.send({"op": "alive"})
