"""How workers are connected to one another, without workers."""

from __future__ import annotations

import json
import os
import socket
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.engine.host import Launch
from harness.engine.launcher import LocalLauncher


def test_a_worker_that_has_just_died_can_be_named_in_a_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inherited: dict[str, socket.socket] = {}

    def start(words, files, log, environment):
        inherited[words[0]] = socket.socket(fileno=os.dup(json.loads(words[2])["invitations"]))
        return SimpleNamespace(pid=os.getpid())

    monkeypatch.setattr("harness.engine.host.start", start)
    with ExitStack() as stack:
        launcher = LocalLauncher(stack, tmp_path)
        for name in ("alive", "dead"):
            _, ours = launcher.start(Launch(name, name, tmp_path / name, 1, has_peers=True), 0)
            stack.enter_context(ours)
        inherited["dead"].close()
        launcher.connect("dead", "alive")
        with inherited["alive"] as alive:
            name, files, _, _ = socket.recv_fds(alive, 256, 1)
        assert name == b"dead"
        with socket.socket(fileno=files[0]) as peer:
            assert not peer.recv(1), "the other end is closed: the peer is lost at once"
