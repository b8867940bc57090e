"""How requests are sent: the values of `client`."""

from __future__ import annotations

from dataclasses import dataclass

from harness.configuration.checks import require


@dataclass(kw_only=True, slots=True)
class ClientConfig:
    drain_s: float  # how long after the last arrival unfinished requests are waited for
    concurrency: int | None = None  # closed loop: so many requests in flight; None: open loop
    processes: int | None = None  # that send and read over HTTP; None: a thread of the run's own

    def __post_init__(self) -> None:
        require(self.drain_s >= 0, f"drain_s={self.drain_s} must be at least 0 seconds")
        count = self.concurrency
        known = count is None or count >= 1
        require(known, f"concurrency={count} must be at least 1 request in flight, or null")
        many = self.processes
        require(many is None or many >= 1, f"processes={many} must be at least 1, or left out")
