"""The harness's side of elastic workers' bytes, without workers."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

from harness.clock import WallLoop
from harness.device.topology import Topology
from harness.engine.fabric import LinkTable, TorchFabric
from tests.elastic import hardware


def test_a_worker_that_has_just_died_can_be_named_in_a_connection() -> None:
    links = LinkTable(Topology(hardware()), [], paced=False)
    fabric = TorchFabric(WallLoop(), links, {}, 1)
    theirs = {}
    for name in ("alive", "dead"):
        ours, theirs[name] = socket.socketpair()
        commands: Any = SimpleNamespace(worker=SimpleNamespace())
        fabric.join(name, commands, ours)
    theirs["dead"].close()
    fabric.connect("dead", "alive")
    name, files, _, _ = socket.recv_fds(theirs["alive"], 256, 1)
    assert name == b"dead"
    with socket.socket(fileno=files[0]) as peer:
        assert not peer.recv(1), "the other end is closed: the peer is lost at once"
