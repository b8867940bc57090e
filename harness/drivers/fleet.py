"""Servers of one run, started side by side: ready together, watched together, ended together.

Speaks HTTP to them only to ask whether they are up. Knows nothing of what they serve.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.clock import WallLoop
from harness.drivers.server import Server, free_ports
from harness.errors import RunError

POLL_S = 0.2
PROGRESS_S = 5.0
PORT_TAKEN = "address already in use"  # as the operating system puts it, in lower case

# Never through a proxy: the servers are on this machine.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(kw_only=True, slots=True)
class Plan:
    """A server to start: `command` makes its command line for a port."""

    name: str
    command: Callable[[int], list[str]]
    env: Mapping[str, str]
    log_path: Path


@dataclass(slots=True)
class Member:
    plan: Plan
    port: int
    server: Server
    started_s: float
    ready_s: float | None = None  # seconds that it took to come up

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def running(
    plans: Sequence[Plan], timeout_s: float, announce: Callable[[str], None]
) -> Iterator[list[Member]]:
    """Yields the servers once all answer /health. Raises RunError with the log's tail when one
    ends before, or is not up in `timeout_s`. On exit no process of theirs is left."""
    members: list[Member] = []
    try:
        for plan, port in zip(plans, free_ports(len(plans)), strict=True):
            members.append(_launched(plan, port))
        _wait_ready(members, timeout_s, announce)
        yield members
    finally:
        for member in members:
            member.server.ask_to_stop()
        for member in members:
            member.server.stop()


def watch(members: Sequence[Member], loop: WallLoop) -> None:
    """From now on, the end of any server ends the run in `loop` with a RunError that names it."""
    for member in members:
        member.server.watch(_reporter(member.server, loop))


def _reporter(server: Server, loop: WallLoop) -> Callable[[], None]:
    def fail() -> None:
        raise RunError(f"during the run, {server.obituary()}")

    return lambda: loop.post(fail)


def _launched(plan: Plan, port: int) -> Member:
    server = Server(plan.name, plan.command(port), plan.env, plan.log_path)
    return Member(plan, port, server, time.monotonic())


def _wait_ready(members: list[Member], timeout_s: float, announce: Callable[[str], None]) -> None:
    start_s = progress_s = time.monotonic()
    moved: set[str] = set()  # servers given another port, which happens once
    while waiting := [member for member in members if member.ready_s is None]:
        for member in waiting:
            if not member.server.running:
                _replace(members, member, moved)
            elif _is_up(member):
                member.ready_s = time.monotonic() - member.started_s
                announce(f"{member.plan.name} is ready after {member.ready_s:.0f} s")
        now_s = time.monotonic()
        if now_s - start_s > timeout_s:
            late = waiting[0].server
            raise RunError(
                f"{late.name} was not ready in {timeout_s:g} s (engine.start_timeout_s); it last "
                f"said: {late.last_line()}; its log is {late.log_path}"
            )
        if now_s - progress_s > PROGRESS_S:
            progress_s = now_s
            for member in members:
                if member.ready_s is None:
                    elapsed_s = now_s - member.started_s
                    announce(
                        f"{member.plan.name}, {elapsed_s:.0f} s: {member.server.last_line()[:120]}"
                    )
        time.sleep(POLL_S)


def _replace(members: list[Member], member: Member, moved: set[str]) -> None:
    """Starts an ended server again on another port, if its own was taken in the meantime."""
    obituary = member.server.obituary()
    if PORT_TAKEN not in obituary.lower() or member.plan.name in moved:
        raise RunError(f"while starting, {obituary}")
    moved.add(member.plan.name)
    (port,) = free_ports(1)
    members[members.index(member)] = _launched(member.plan, port)


def _is_up(member: Member) -> bool:
    try:
        with OPENER.open(f"{member.url}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
