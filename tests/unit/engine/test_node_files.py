"""Files of a node that workers of another one read and write, over sockets of this process."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from harness.engine import tcp
from harness.engine.host import memory_file
from harness.engine.node_agent import NodeAgent
from harness.engine.node_files import FarFile, FarHost, OpenFile, serve
from harness.engine.transport import Connection, PeerLost

SIZE = 5_000_000  # more than a socket holds


@pytest.fixture
def ends() -> Iterator[tuple[OpenFile, FarFile, socket.socket]]:
    """A file as its node has it, the same from another node, and the end that serves it."""
    with ExitStack() as stack:
        number = memory_file(stack, "kv", SIZE)
        ours, theirs = socket.socketpair()
        thread = threading.Thread(target=serve, args=(theirs, {"kv": number}, {}))
        thread.start()
        stack.callback(thread.join)
        stack.callback(ours.close)  # which ends the thread, and that closes its end
        yield OpenFile(number), FarFile("kv", FarHost(ours)), theirs


def test_what_one_node_writes_the_other_reads(
    ends: tuple[OpenFile, FarFile, socket.socket],
) -> None:
    here, far, _ = ends
    content, read = secrets.token_bytes(SIZE - 100), bytearray(SIZE - 100)
    far.write(memoryview(content), 100)
    here.read(memoryview(read), 100)
    assert read == content
    here.write(memoryview(b"changed"), 150)
    far.read(memoryview(read)[:7], 150)
    assert read[:7] == b"changed"


def test_a_read_beyond_the_end_is_told_and_the_next_one_is_right(
    ends: tuple[OpenFile, FarFile, socket.socket],
) -> None:
    _, far, _ = ends
    with pytest.raises(OSError, match="ends 10 bytes before"):
        far.read(memoryview(bytearray(20)), SIZE - 10)
    far.read(memoryview(bytearray(20)), SIZE - 20)


def test_a_worker_that_dies_before_it_has_read_ends_the_serving() -> None:
    with ExitStack() as stack:
        number = memory_file(stack, "kv", SIZE)
        ours, theirs = socket.socketpair()
        Connection(ours).send({"op": "read", "file": "kv", "at": 0, "num_bytes": SIZE})
        ours.close()
        serve(theirs, {"kv": number}, {})


def test_a_node_that_has_died_is_lost_at_once_and_for_good(
    ends: tuple[OpenFile, FarFile, socket.socket],
) -> None:
    _, far, theirs = ends
    theirs.shutdown(socket.SHUT_RDWR)
    for _ in range(2):
        with pytest.raises(PeerLost):
            far.read(memoryview(bytearray(1)), 0)


def test_a_node_that_does_not_answer_is_lost_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.engine.node_files.ANSWER_S", 0.1)
    ours, theirs = socket.socketpair()
    with theirs, pytest.raises(PeerLost):
        FarFile("kv", FarHost(ours)).read(memoryview(bytearray(1)), 0)


def test_a_node_serves_any_number_of_workers_and_still_listens() -> None:
    token = secrets.token_bytes(tcp.TOKEN_BYTES)
    agent = NodeAgent("127.0.0.1", token)
    with agent.stack:
        agent.open({"kv": 8})
        hosts = [FarHost(tcp.connect(agent.serve(), token)) for _ in range(50)]
        FarFile("kv", hosts[0]).write(memoryview(b"8 bytes!"), 0)
        for host in hosts:
            read = bytearray(8)
            FarFile("kv", host).read(memoryview(read), 0)
            assert read == b"8 bytes!"
