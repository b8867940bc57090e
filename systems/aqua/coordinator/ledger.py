"""The coordinator's bookkeeping (section 6), pure: leases of producers, allocations of consumers.

`check` says whether a change is allowed, and changes nothing; `apply` makes the change. Applying
the same changes in the same order gives the same ledger, so a journal restores it. There is no
clock: silent holders are ended from outside, by `Leave`.

A lease has a capacity. A reclaim lowers the capacity at once, and nothing more is allocated above
it. Bytes that are still allocated above it are `overdrawn`; the consumer must evacuate them. The
producer may already use the rest. If a producer is lost, the bytes in its leases are lost too, and
its consumer's allocations there end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from systems.aqua.coordinator.requests import (
    Allocate,
    Change,
    Free,
    Join,
    Leave,
    Offer,
    Reclaim,
    conflict,
    gone,
    invalid,
    unknown,
)
from systems.aqua.coordinator.topology import Topology


@dataclass(slots=True)
class Lease:
    """Memory that a producer lends. holder: the producer."""

    holder: str
    offered_bytes: int
    capacity_bytes: int
    allocated_bytes: int = 0

    @property
    def free_bytes(self) -> int:
        """Can still be allocated."""
        return max(0, self.capacity_bytes - self.allocated_bytes)

    @property
    def overdrawn_bytes(self) -> int:
        """Reclaimed and still allocated."""
        return max(0, self.allocated_bytes - self.capacity_bytes)

    @property
    def held_bytes(self) -> int:
        """Of the producer's memory: it must not use these bytes now."""
        return self.capacity_bytes + self.overdrawn_bytes


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

    # --- The state

    def lent_bytes(self, device: str) -> int:
        """Bytes of a device's memory that are in leases."""
        leases = self.leases.values()
        return sum(x.held_bytes for x in leases if self.devices[x.holder] == device)

    def leases_for(self, holder: str) -> dict[str, Lease]:
        """{lease: itself} of the leases in which a consumer may allocate, oldest first."""
        producer = self.topology.producers.get(self.devices[holder])
        return {
            name: lease
            for name, lease in self.leases.items()
            if self.devices[lease.holder] == producer
        }

    def status(self) -> dict[str, Any]:
        """All holders, leases and allocations as plain data; sizes in bytes."""
        return {
            "holders": dict(self.devices),
            "leases": {
                name: {
                    "holder": lease.holder,
                    "offered_bytes": lease.offered_bytes,
                    "capacity_bytes": lease.capacity_bytes,
                    "allocated_bytes": lease.allocated_bytes,
                    "free_bytes": lease.free_bytes,
                    "overdrawn_bytes": lease.overdrawn_bytes,
                }
                for name, lease in self.leases.items()
            },
            "allocations": {
                name: {"holder": each.holder, "lease": each.lease, "num_bytes": each.num_bytes}
                for name, each in self.allocations.items()
            },
        }

    # --- What is allowed

    def check(self, change: Change) -> None:
        """Raises Refused, with the reason, for a change that is not allowed."""
        match change:
            case Join():
                self._check_join(change)
            case Leave():
                if change.holder not in self.ended_holders:
                    self._check_holder(change.holder)
            case Offer():
                self._check_offer(change)
            case Reclaim():
                self._check_reclaim(change)
            case Allocate():
                self._check_allocate(change)
            case Free():
                self._check_free(change)

    def _check_holder(self, holder: str) -> None:
        if holder in self.ended_holders:
            raise gone(f"holder {holder} has left or fallen silent: join under a new name")
        if holder not in self.devices:
            raise unknown(f"no holder {holder}: join first")

    def _check_join(self, join: Join) -> None:
        if join.holder in self.ended_holders:
            raise gone(f"holder {join.holder} has left or fallen silent: choose a new name")
        if join.device not in self.topology.memory_bytes:
            known = ", ".join(sorted(self.topology.memory_bytes)) or "none"
            raise unknown(f"no device {join.device}; devices: {known}")
        if self.devices.get(join.holder, join.device) != join.device:
            raise conflict(f"holder {join.holder} is on {self.devices[join.holder]}")
        others = [h for h, device in self.devices.items() if device == join.device]
        if others and join.holder not in others:
            raise conflict(f"device {join.device} is held by {others[0]}")

    def _check_offer(self, offer: Offer) -> None:
        self._check_holder(offer.holder)
        if offer.num_bytes < 1:
            raise invalid(f"num_bytes={offer.num_bytes}; valid: at least 1")
        if offer.lease in self.ended_leases:
            raise gone(f"lease {offer.lease} has ended: offer under a new name")
        if offer.lease in self.leases:
            lease = self.leases[offer.lease]
            if (lease.holder, lease.offered_bytes) != (offer.holder, offer.num_bytes):
                raise conflict(f"lease {offer.lease} is one of {lease.offered_bytes} bytes already")
            return
        device = self.devices[offer.holder]
        left = self.topology.memory_bytes[device] - self.lent_bytes(device)
        if offer.num_bytes > left:
            raise conflict(
                f"num_bytes={offer.num_bytes} is beyond the memory of {device}; valid: at most "
                f"{left}"
            )

    def _check_reclaim(self, reclaim: Reclaim) -> None:
        self._check_holder(reclaim.holder)
        if reclaim.keep_bytes < 0:
            raise invalid(f"keep_bytes={reclaim.keep_bytes}; valid: at least 0")
        if reclaim.lease in self.ended_leases:
            if self.ended_leases[reclaim.lease] != reclaim.holder or reclaim.keep_bytes:
                raise gone(f"lease {reclaim.lease} has ended")
            return  # a copy of the request that ended it
        lease = self._lease(reclaim.lease)
        if lease.holder != reclaim.holder:
            raise conflict(f"lease {reclaim.lease} is {lease.holder}'s, not {reclaim.holder}'s")
        if reclaim.keep_bytes > lease.capacity_bytes:
            raise conflict(
                f"keep_bytes={reclaim.keep_bytes} of lease {reclaim.lease}; valid: at most "
                f"{lease.capacity_bytes}, for a lease only shrinks (offer another)"
            )

    def _check_allocate(self, allocate: Allocate) -> None:
        self._check_holder(allocate.holder)
        if allocate.num_bytes < 1:
            raise invalid(f"num_bytes={allocate.num_bytes}; valid: at least 1")
        if allocate.allocation in self.ended_allocations:
            raise gone(f"allocation {allocate.allocation} has ended: choose a new name")
        known = self.allocations.get(allocate.allocation)
        if known and (known.holder, known.num_bytes) != (allocate.holder, allocate.num_bytes):
            raise conflict(
                f"allocation {allocate.allocation} is one of {known.num_bytes} bytes already"
            )

    def _check_free(self, free: Free) -> None:
        self._check_holder(free.holder)
        holder = self.ended_allocations.get(free.allocation)
        if holder is None:
            if free.allocation not in self.allocations:
                raise unknown(f"no allocation {free.allocation}")
            holder = self.allocations[free.allocation].holder
        if holder != free.holder:
            raise conflict(f"allocation {free.allocation} is {holder}'s, not {free.holder}'s")

    def _lease(self, name: str) -> Lease:
        if name in self.ended_leases:
            raise gone(f"lease {name} has ended")
        if name not in self.leases:
            raise unknown(f"no lease {name}")
        return self.leases[name]

    def lease(self, name: str) -> Lease:
        """The lease. Raises Refused if there is none of this name."""
        return self._lease(name)

    # --- Changes

    def apply(self, change: Change) -> None:
        """Makes a change that `check` allows. Else raises Refused, and changes nothing."""
        self.check(change)
        match change:
            case Join():
                self.devices[change.holder] = change.device
            case Leave():
                self._leave(change.holder)
            case Offer():
                size = change.num_bytes
                self.leases.setdefault(change.lease, Lease(change.holder, size, size))
            case Reclaim():
                if change.lease in self.leases:
                    self.leases[change.lease].capacity_bytes = change.keep_bytes
                    self._end_if_empty(change.lease)
            case Allocate():
                self._allocate(change)
            case Free():
                self._free(change.allocation)

    def _allocate(self, allocate: Allocate) -> None:
        """Allocates in the oldest lease with room for all bytes; without such a lease, nothing."""
        if allocate.allocation in self.allocations:
            return
        for name, lease in self.leases_for(allocate.holder).items():
            if lease.free_bytes >= allocate.num_bytes:
                lease.allocated_bytes += allocate.num_bytes
                self.allocations[allocate.allocation] = Allocation(
                    allocate.holder, name, allocate.num_bytes
                )
                return

    def _free(self, name: str) -> None:
        allocation = self.allocations.pop(name, None)
        if allocation is None:
            return
        self.ended_allocations[name] = allocation.holder
        self.leases[allocation.lease].allocated_bytes -= allocation.num_bytes
        self._end_if_empty(allocation.lease)

    def _end_if_empty(self, name: str) -> None:
        lease = self.leases[name]
        if not lease.held_bytes:
            del self.leases[name]
            self.ended_leases[name] = lease.holder

    def _leave(self, holder: str) -> None:
        if holder in self.ended_holders:
            return
        for name in [n for n, each in self.allocations.items() if each.holder == holder]:
            self._free(name)
        lost = {name for name, lease in self.leases.items() if lease.holder == holder}
        for name in [n for n, each in self.allocations.items() if each.lease in lost]:
            self.ended_allocations[name] = self.allocations.pop(name).holder
        for name in lost:
            del self.leases[name]
        for ended in (self.ended_leases, self.ended_allocations):
            for name in [n for n, each in ended.items() if each == holder]:
                del ended[name]
        del self.devices[holder]
        self.ended_holders.add(holder)
