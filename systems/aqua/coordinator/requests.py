"""What holders ask of the coordinator, and how it refuses. Plain data, written to its journal.

A holder is a process that serves on a device. Callers choose the names of holders, leases and
allocations. Every request can be sent again without harm: a lease only shrinks, and a name that has
ended never comes back, so a late copy changes nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


class Refused(ValueError):
    """The request is refused and changes nothing; the message is the reason. status: HTTP's."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def invalid(reason: str) -> Refused:
    return Refused(422, reason)


def unknown(reason: str) -> Refused:
    return Refused(404, reason)


def conflict(reason: str) -> Refused:
    return Refused(409, reason)


def gone(reason: str) -> Refused:
    return Refused(410, reason)


@dataclass(slots=True, frozen=True)
class Join:
    """A process begins to serve on a device. A device has one process at a time."""

    holder: str
    device: str


@dataclass(slots=True, frozen=True)
class Leave:
    """A process is done, or has fallen silent. Its leases and allocations end with it."""

    holder: str


@dataclass(slots=True, frozen=True)
class Offer:
    """A producer lends bytes of its device (section 6)."""

    lease: str
    holder: str
    num_bytes: int


@dataclass(slots=True, frozen=True)
class Reclaim:
    """A producer wants a lease back, except `keep_bytes`. With 0 it ends once it is empty."""

    lease: str
    holder: str
    keep_bytes: int


@dataclass(slots=True, frozen=True)
class Allocate:
    """A consumer asks for room in one of its producer's leases."""

    allocation: str
    holder: str
    num_bytes: int


@dataclass(slots=True, frozen=True)
class Free:
    """A consumer gives an allocation back."""

    allocation: str
    holder: str


Change = Join | Leave | Offer | Reclaim | Allocate | Free
KINDS: dict[str, type[Change]] = {
    kind.__name__: kind for kind in (Join, Leave, Offer, Reclaim, Allocate, Free)
}


def to_json(change: Change) -> dict[str, Any]:
    return {"change": type(change).__name__, **asdict(change)}


def from_json(content: dict[str, Any]) -> Change:
    fields = {key: value for key, value in content.items() if key != "change"}
    return KINDS[content["change"]](**fields)
