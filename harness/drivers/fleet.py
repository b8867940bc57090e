"""Servers of one run, started side by side: ready together, watched together, ended together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NoReturn

from harness.clock import WallLoop
from harness.drivers.server import Plan, Server
from harness.errors import RunError

POLL_S = 0.2
PROGRESS_S = 5.0
PORT_TAKEN = "address already in use"  # as the operating system puts it, in lower case


@contextmanager
def running(
    plans: Sequence[Plan], timeout_s: float, announce: Callable[[str], None]
) -> Iterator[list[Server]]:
    """Yields the servers once all answer /health. Raises RunError with the log's tail when one
    ends before, or is not up in `timeout_s`. On exit no process of theirs is left, but on a
    node whose agent answers no more: there they end with the agent."""
    servers: list[Server] = []
    try:
        ports = dict[str, int]()
        for site in dict.fromkeys(plan.site for plan in plans):
            names = [plan.name for plan in plans if plan.site is site]
            ports.update(zip(names, site.free_ports(len(names)), strict=True))
        servers.extend(Server(plan, ports[plan.name]) for plan in plans)  # one by one
        _wait_ready(servers, timeout_s, announce)
        yield servers
    finally:
        for server in servers:
            server.ask_to_stop()
        for server in servers:
            server.stop()


def watch(servers: Sequence[Server], loop: WallLoop, on_death: Callable[[Server], None]) -> None:
    """Has `loop` be told of the end of any server from now on."""
    for server in servers:
        server.watch(partial(loop.post, on_death, server))


def fail(server: Server) -> NoReturn:
    """Ends the run with a RunError that names the server."""
    raise RunError(f"during the run, {server.obituary()}")


def _wait_ready(servers: list[Server], timeout_s: float, announce: Callable[[str], None]) -> None:
    start_s = progress_s = time.monotonic()
    moved: set[str] = set()  # servers given another port, which happens once
    while waiting := [server for server in servers if server.ready_s is None]:
        for server in waiting:
            if not server.running:
                _replace(servers, server, moved)
            elif server.is_up():
                server.ready_s = time.monotonic() - server.started_s
                announce(f"{server.name} is ready after {server.ready_s:.0f} s")
        now_s = time.monotonic()
        if now_s - start_s > timeout_s:
            late = waiting[0]
            raise RunError(
                f"{late.name} was not ready in {timeout_s:g} s (engine.start_timeout_s); it last "
                f"said: {late.last_line()}; its log is {late.log_path}"
            )
        if now_s - progress_s > PROGRESS_S:
            progress_s = now_s
            for server in servers:
                if server.ready_s is None:
                    elapsed_s = now_s - server.started_s
                    announce(f"{server.name}, {elapsed_s:.0f} s: {server.last_line()[:120]}")
        time.sleep(POLL_S)


def _replace(servers: list[Server], server: Server, moved: set[str]) -> None:
    """Starts an ended server again on another port, if its own was taken in the meantime."""
    obituary = server.obituary()
    if PORT_TAKEN not in obituary.lower() or server.name in moved:
        raise RunError(f"while starting, {obituary}")
    moved.add(server.name)
    (port,) = server.plan.site.free_ports(1)
    servers[servers.index(server)] = Server(server.plan, port)
