"""The coordinator's bookkeeping (section 6), pure: leases of producers, allocations of consumers.

`requests.py` has the changes. Making the same ones in the same order gives the same ledger, so a
journal restores it. There is no clock: silent holders are ended from outside, by `Leave`.

A lease has a capacity. A reclaim lowers the capacity at once, and nothing more is allocated above
it. Bytes that are still allocated above it are `overdrawn`; the consumer must evacuate them. The
producer may already use the rest. If a producer is lost, the bytes in its leases are lost too, and
its consumer's allocations there end.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # vLLM's plug-in has this file without the harness
    from systems.aqua.coordinator.topology import Topology

GONE = 410  # HTTP's: a name that has ended


class Refused(ValueError):
    """The request is refused and changes nothing; the message is the reason. status: HTTP's."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


unknown, conflict = partial(Refused, 404), partial(Refused, 409)
gone = partial(Refused, GONE)


@dataclass(slots=True)
class Lease:
    """Memory that a producer lends. holder: the producer."""

    holder: str
    offered_bytes: int
    capacity_bytes: int
    allocated_bytes: int = 0

    @property
    def free_bytes(self) -> int:
        """Bytes that can still be allocated."""
        return max(0, self.capacity_bytes - self.allocated_bytes)

    @property
    def overdrawn_bytes(self) -> int:
        """Bytes that are reclaimed and still allocated."""
        return max(0, self.allocated_bytes - self.capacity_bytes)

    @property
    def held_bytes(self) -> int:
        """Bytes of the producer's memory that it must not use now."""
        return self.capacity_bytes + self.overdrawn_bytes

    def status(self) -> dict[str, Any]:
        return {
            "holder": self.holder, "offered_bytes": self.offered_bytes,
            "capacity_bytes": self.capacity_bytes, "allocated_bytes": self.allocated_bytes,
            "free_bytes": self.free_bytes, "overdrawn_bytes": self.overdrawn_bytes,
        }  # fmt: skip


@dataclass(slots=True)
class Allocation:
    """A consumer's bytes in a lease. holder: the consumer."""

    holder: str
    lease: str
    num_bytes: int


@dataclass(slots=True)
class Ledger:
    """Holders, leases and allocations.

    Names that have ended are remembered, so that a late copy of a request has no effect. Names of
    ended leases and allocations are forgotten with their holder. A holder's name is never
    forgotten.
    """

    topology: Topology
    devices: dict[str, str] = field(default_factory=dict)  # {holder: device}
    leases: dict[str, Lease] = field(default_factory=dict)
    allocations: dict[str, Allocation] = field(default_factory=dict)
    ended_holders: set[str] = field(default_factory=set)
    ended_leases: dict[str, str] = field(default_factory=dict)  # {name: holder}
    ended_allocations: dict[str, str] = field(default_factory=dict)  # {name: holder}

    def check_holder(self, holder: str) -> None:
        if holder in self.ended_holders:
            raise gone(f"holder {holder} has left or fallen silent: join under a new name")
        if holder not in self.devices:
            raise unknown(f"no holder {holder}: join first")

    def lease(self, name: str) -> Lease:
        """The lease of this name. Raises Refused if there is none."""
        if name in self.ended_leases:
            raise gone(f"lease {name} has ended")
        if name not in self.leases:
            raise unknown(f"no lease {name}")
        return self.leases[name]

    def lent_bytes(self, device: str) -> int:
        """Bytes of a device's memory that are in leases."""
        leases = self.leases.values()
        return sum(x.held_bytes for x in leases if self.devices[x.holder] == device)

    def leases_for(self, holder: str) -> dict[str, Lease]:
        """{lease: itself} of the leases in which a consumer may allocate, oldest first."""
        producer = self.topology.pairs.get(self.devices[holder])
        return {
            name: lease
            for name, lease in self.leases.items()
            if self.devices[lease.holder] == producer
        }

    def status_of_leases(self) -> dict[str, dict[str, Any]]:
        return {name: lease.status() for name, lease in self.leases.items()}

    def status(self) -> dict[str, Any]:
        """All holders, leases and allocations as plain data; sizes in bytes."""
        return {
            "holders": dict(self.devices),
            "leases": self.status_of_leases(),
            "allocations": {name: asdict(each) for name, each in self.allocations.items()},
        }

    def free(self, name: str) -> None:
        """Ends an allocation, if it has not ended."""
        allocation = self.allocations.pop(name, None)
        if allocation is None:
            return
        self.ended_allocations[name] = allocation.holder
        self.leases[allocation.lease].allocated_bytes -= allocation.num_bytes
        self.end_if_empty(allocation.lease)

    def end_if_empty(self, name: str) -> None:
        lease = self.leases[name]
        if not lease.held_bytes:
            del self.leases[name]
            self.ended_leases[name] = lease.holder
