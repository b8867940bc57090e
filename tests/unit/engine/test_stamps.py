"""When a worker's tokens came, by whose clock. Without a worker."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.clock import WallLoop
from harness.engine.transport import Connection, Header
from harness.engine.worker_process import WorkerProcess

THEIRS_S = 5.0  # a time on the worker's clock


@pytest.mark.parametrize("stamps", [True, False], ids=["another host", "this host"])
def test_tokens_of_another_host_have_the_time_at_which_they_came_and_no_later_one(
    stamps: bool, tmp_path: Path
) -> None:
    """However long the loop is busy with something else."""
    ours, theirs = socket.socketpair()
    process: Any = SimpleNamespace(pid=0, kill=lambda: None, wait=lambda timeout=None: 0)
    worker = WorkerProcess("torch-0", process, ours, tmp_path / "log", 60.0, 60.0, stamps=stamps)
    loop, came = WallLoop(), list[Header]()
    worker.listen(loop, came.append)
    sent_s = time.monotonic()
    Connection(theirs).send({"op": "answer", "seq": 1, "last": True, "time_s": THEIRS_S})
    while loop._inbox.empty():
        time.sleep(0.001)
    posted_s = time.monotonic()
    loop._drain_inbox()
    worker.close()
    theirs.close()
    (header,) = came
    if stamps:
        assert sent_s < header["time_s"] < posted_s
    else:
        assert header["time_s"] == THEIRS_S
