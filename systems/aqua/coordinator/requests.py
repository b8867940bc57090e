"""What holders ask of the coordinator (section 6): when it is refused, and what it changes.

A holder is a process that serves on a device. Callers choose the names of holders, leases and
allocations. Every request can be sent again without harm: a lease only shrinks, and a name that has
ended never comes back, so a late copy changes nothing. `check` raises Refused, with the reason, and
changes nothing; `make` makes what `check` allows. Requests are plain data, written to the journal.
Sizes are positive: the endpoints check them, and who asks within a run counts whole blocks.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from systems.aqua.coordinator.ledger import Allocation, Lease, Ledger, conflict, gone, unknown


@dataclass(slots=True, frozen=True)
class Join:
    """A process begins to serve on a device. A device has one process at a time."""

    holder: str
    device: str

    def check(self, ledger: Ledger) -> None:
        if self.holder in ledger.ended_holders:
            raise gone(f"holder {self.holder} has left or fallen silent: choose a new name")
        if self.device not in ledger.topology.devices:
            known = ", ".join(sorted(ledger.topology.devices)) or "none"
            raise unknown(f"no device {self.device}; devices: {known}")
        if ledger.devices.get(self.holder, self.device) != self.device:
            raise conflict(f"holder {self.holder} is on {ledger.devices[self.holder]}")
        others = [h for h, device in ledger.devices.items() if device == self.device]
        if others and self.holder not in others:
            raise conflict(f"device {self.device} is held by {others[0]}")

    def make(self, ledger: Ledger) -> None:
        ledger.devices[self.holder] = self.device


@dataclass(slots=True, frozen=True)
class Leave:
    """A process is done, or has fallen silent. Its leases and allocations end with it; bytes of
    others in its leases are lost."""

    holder: str

    def check(self, ledger: Ledger) -> None:
        if self.holder not in ledger.ended_holders:
            ledger.check_holder(self.holder)

    def make(self, ledger: Ledger) -> None:
        if self.holder in ledger.ended_holders:
            return
        own = [n for n, each in ledger.allocations.items() if each.holder == self.holder]
        for name in own:
            ledger.free(name)
        lost = {name for name, lease in ledger.leases.items() if lease.holder == self.holder}
        for name in [n for n, each in ledger.allocations.items() if each.lease in lost]:
            ledger.ended_allocations[name] = ledger.allocations.pop(name).holder
        for name in lost:
            del ledger.leases[name]
        for ended in (ledger.ended_leases, ledger.ended_allocations):
            for name in [n for n, each in ended.items() if each == self.holder]:
                del ended[name]
        del ledger.devices[self.holder]
        ledger.ended_holders.add(self.holder)


@dataclass(slots=True, frozen=True)
class Offer:
    """A producer lends bytes of its device."""

    lease: str
    holder: str
    num_bytes: int

    def check(self, ledger: Ledger) -> None:
        ledger.check_holder(self.holder)
        if self.lease in ledger.ended_leases:
            raise gone(f"lease {self.lease} has ended: offer under a new name")
        if self.lease in ledger.leases:
            lease = ledger.leases[self.lease]
            if (lease.holder, lease.offered_bytes) != (self.holder, self.num_bytes):
                raise conflict(f"lease {self.lease} is one of {lease.offered_bytes} bytes already")
            return
        device = ledger.devices[self.holder]
        left = ledger.topology.devices[device].memory_bytes - ledger.lent_bytes(device)
        if self.num_bytes > left:
            raise conflict(
                f"num_bytes={self.num_bytes} is beyond the memory of {device}; valid: at most "
                f"{left}"
            )

    def make(self, ledger: Ledger) -> None:
        offered = Lease(self.holder, self.num_bytes, self.num_bytes)
        ledger.leases.setdefault(self.lease, offered)


@dataclass(slots=True, frozen=True)
class Reclaim:
    """A producer wants a lease back, except `keep_bytes`. With 0 it ends once it is empty."""

    lease: str
    holder: str
    keep_bytes: int

    def check(self, ledger: Ledger) -> None:
        ledger.check_holder(self.holder)
        if ledger.ended_leases.get(self.lease) == self.holder and not self.keep_bytes:
            return  # a copy of the request that ended it
        lease = ledger.lease(self.lease)
        if lease.holder != self.holder:
            raise conflict(f"lease {self.lease} is {lease.holder}'s, not {self.holder}'s")
        if self.keep_bytes > lease.capacity_bytes:
            raise conflict(
                f"keep_bytes={self.keep_bytes} of lease {self.lease}; valid: at most "
                f"{lease.capacity_bytes}, for a lease only shrinks (offer another)"
            )

    def make(self, ledger: Ledger) -> None:
        if self.lease in ledger.leases:
            ledger.leases[self.lease].capacity_bytes = self.keep_bytes
            ledger.end_if_empty(self.lease)


@dataclass(slots=True, frozen=True)
class Allocate:
    """A consumer asks for room in one of its producer's leases: the oldest that has it all."""

    allocation: str
    holder: str
    num_bytes: int

    def check(self, ledger: Ledger) -> None:
        ledger.check_holder(self.holder)
        if self.allocation in ledger.ended_allocations:
            raise gone(f"allocation {self.allocation} has ended: choose a new name")
        known = ledger.allocations.get(self.allocation)
        if known and (known.holder, known.num_bytes) != (self.holder, self.num_bytes):
            raise conflict(
                f"allocation {self.allocation} is one of {known.num_bytes} bytes already"
            )

    def make(self, ledger: Ledger) -> None:
        if self.allocation in ledger.allocations:
            return
        for name, lease in ledger.leases_for(self.holder).items():
            if lease.free_bytes >= self.num_bytes:
                lease.allocated_bytes += self.num_bytes
                allocation = Allocation(self.holder, name, self.num_bytes)
                ledger.allocations[self.allocation] = allocation
                return


@dataclass(slots=True, frozen=True)
class Free:
    """A consumer gives an allocation back."""

    allocation: str
    holder: str

    def check(self, ledger: Ledger) -> None:
        ledger.check_holder(self.holder)
        holder = ledger.ended_allocations.get(self.allocation)
        if holder is None:
            if self.allocation not in ledger.allocations:
                raise unknown(f"no allocation {self.allocation}")
            holder = ledger.allocations[self.allocation].holder
        if holder != self.holder:
            raise conflict(f"allocation {self.allocation} is {holder}'s, not {self.holder}'s")

    def make(self, ledger: Ledger) -> None:
        ledger.free(self.allocation)


Change = Join | Leave | Offer | Reclaim | Allocate | Free
KINDS: dict[str, type[Change]] = {
    kind.__name__: kind for kind in (Join, Leave, Offer, Reclaim, Allocate, Free)
}


def to_json(change: Change) -> dict[str, Any]:
    return {"change": type(change).__name__, **asdict(change)}


def from_json(content: dict[str, Any]) -> Change:
    fields = {key: value for key, value in content.items() if key != "change"}
    return KINDS[content["change"]](**fields)
