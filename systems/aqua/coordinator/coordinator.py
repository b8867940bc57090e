"""The ledger with its journal and its holders' heartbeats, for simulation and for the REST server.

The caller gives the time. Heartbeats are not written to the journal: after a restart every holder
has a whole `heartbeat_timeout_s` for its next heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from harness.errors import UsageError
from systems.aqua.coordinator.journal import Journal
from systems.aqua.coordinator.ledger import Lease, Ledger, Refused
from systems.aqua.coordinator.requests import Allocate, Change, Join, Leave
from systems.aqua.coordinator.topology import Topology

Clock = Callable[[], float]  # gives the time in seconds


def check_timeout(heartbeat_timeout_s: float) -> None:
    """Raises UsageError unless the timeout is finite and above 0."""
    if not 0 < heartbeat_timeout_s < inf:
        raise UsageError(f"heartbeat_timeout_s={heartbeat_timeout_s:g}; valid: finite and above 0")


class Coordinator:
    """Makes changes that the ledger allows, and ends silent holders."""

    def __init__(
        self, topology: Topology, journal: Journal | None, now: Clock, *, heartbeat_timeout_s: float
    ) -> None:
        """Starts from the journal's changes; journal None: nothing is kept. Raises UsageError for a
        journal of another topology."""
        check_timeout(heartbeat_timeout_s)
        self._ledger = Ledger(topology)
        self._journal, self._now = journal, now
        self._timeout_s = heartbeat_timeout_s
        for change in journal.changes() if journal else ():
            try:
                change.check(self._ledger)
            except Refused as error:
                raise UsageError(f"the state file is of another topology: {error}") from error
            change.make(self._ledger)
        self._heard_s = dict.fromkeys(self._ledger.devices, now())

    def make(self, change: Change) -> str | None:
        """Makes a change; it is on disk when this returns. Raises Refused, and changes nothing, for
        a change that is not allowed. Returns the lease that an allocation is in, or None if no
        lease has room for it."""
        self.expire()
        change.check(self._ledger)
        self._write(change)
        if isinstance(change, Join):
            self._heard_s[change.holder] = self._now()
        if isinstance(change, Allocate) and change.allocation in self._ledger.allocations:
            return self._ledger.allocations[change.allocation].lease
        return None

    def heartbeat(self, holder: str) -> None:
        """Tells that `holder` lives. Raises Refused if it has ended, or never joined."""
        self.expire()
        self._ledger.check_holder(holder)
        self._heard_s[holder] = self._now()

    def expire(self) -> None:
        """Ends the holders without a heartbeat for `heartbeat_timeout_s`."""
        latest_s = self._now() - self._timeout_s
        for holder in [h for h, heard_s in self._heard_s.items() if heard_s < latest_s]:
            self._write(Leave(holder))

    def _write(self, change: Change) -> None:
        if self._journal:
            self._journal.append(change)
        change.make(self._ledger)
        if isinstance(change, Leave):
            self._heard_s.pop(change.holder, None)

    def lease(self, name: str) -> Lease:
        """The lease. Raises Refused if there is none of this name."""
        self.expire()
        return self._ledger.lease(name)

    def leases(self) -> dict[str, dict[str, Any]]:
        """{lease: its values}, as `status` has them."""
        self.expire()
        return self._ledger.status_of_leases()

    def status(self) -> dict[str, Any]:
        """All holders, leases and allocations, as `Ledger.status` has them."""
        self.expire()
        return self._ledger.status()
