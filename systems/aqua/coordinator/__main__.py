"""AQUA's coordinator as a REST server on 127.0.0.1. It knows all leases of memory.

It serves until it is ended. A live run starts one by itself. Exit status 2, and one sentence, for a
wrong command.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from harness.errors import UsageError
from systems.aqua.coordinator.app import app
from systems.aqua.coordinator.coordinator import Coordinator, check_timeout
from systems.aqua.coordinator.journal import Journal
from systems.aqua.coordinator.process import HOST
from systems.aqua.coordinator.topology import read_topology

BACKLOG = 128
CHECKS_PER_TIMEOUT = 4  # how often silent holders are looked for, without requests


def bound(port: int) -> socket.socket:
    """A socket that listens on the port; 0: any free port. Raises UsageError if it is not free."""
    if not 0 <= port <= 65535:
        raise UsageError(f"port {port}; valid: 0 (any) to 65535")
    # Name the protocol: else asyncio leaves Nagle's algorithm on, and each answer takes 40 ms.
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after a kill, at once
    try:
        found.bind((HOST, port))
        found.listen(BACKLOG)
    except OSError as error:
        found.close()
        raise UsageError(f"port {port} of {HOST} cannot be had: {error.strerror}") from error
    return found


def end_with_parent() -> None:
    """Ends this process when its parent ends: standard input then closes."""
    sys.stdin.read()
    os._exit(0)  # nothing is lost: every change is written before its answer


async def serve(arguments: argparse.Namespace) -> None:
    """Raises UsageError for wrong input."""
    loop = asyncio.get_running_loop()
    timeout_s = arguments.heartbeat_timeout_s
    check_timeout(timeout_s)
    topology = read_topology(arguments.topology)
    listener = bound(arguments.port)
    journal = Journal(arguments.state)
    coordinator = Coordinator(topology, journal, loop.time, heartbeat_timeout_s=timeout_s)
    server = app(coordinator, timeout_s / CHECKS_PER_TIMEOUT)
    config = uvicorn.Config(server, log_level="warning", access_log=False)
    if arguments.with_parent:
        threading.Thread(target=end_with_parent, daemon=True).start()
    print(f"coordinator at http://{HOST}:{listener.getsockname()[1]}", flush=True)
    await uvicorn.Server(config).serve(sockets=[listener])
    journal.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m systems.aqua.coordinator", description=__doc__)
    add, silent = parser.add_argument, "seconds without a heartbeat after which leases end"
    add("--topology", type=Path, required=True, metavar="FILE", help="devices and pairs, JSON")
    add("--state", type=Path, required=True, metavar="FILE", help="its state, over restarts")
    add("--port", type=int, default=8080, metavar="N", help="8080; 0: any free port")
    add("--heartbeat-timeout-s", type=float, required=True, metavar="S", help=silent)
    add("--with-parent", action="store_true", help="end when stdin closes")
    try:
        asyncio.run(serve(parser.parse_args(arguments)))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
