"""How requests are sent: the values of `client`."""

from __future__ import annotations

from dataclasses import dataclass

from harness.configuration.checks import at_least


@dataclass(kw_only=True, slots=True)
class ClientConfig:
    drain_s: float  # how long after the last arrival unfinished requests are waited for
    concurrency: int | None = None  # closed loop: so many requests in flight; None: open loop
    processes: int | None = None  # that send and read over HTTP; None: a thread of the run's own

    def __post_init__(self) -> None:
        at_least(self, 0, "", "drain_s")
        at_least(self, 1, "", "concurrency", "processes")
