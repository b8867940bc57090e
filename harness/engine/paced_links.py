"""Links that several processes share, each as slow as it is asked to be.

Who sends books the links of its path, and then sleeps while the bytes would be on the wire. A bulk
message is booked only while its links are free, so that an urgent one waits for the chunk under way
on each link and no more; urgent ones book ahead, behind one another. The chunks of one copy follow
each other on the wire without a gap, as a DMA engine's would: what its sender lags behind it
catches up, and latency is the first one's alone.

A link is booked at the host where it is, so that all who send to a node share its NIC: links of
this host in its own table (`harness.engine.bookings`), those of another by asking its agent, which
answers at once. A path over two hosts is booked on one after the other: where the second one's
links are taken, those of the first have been booked for an earlier time than that of the bytes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from harness.engine.bookings import Bookings
from harness.engine.node_files import FarFile, NodeFile

Over = Mapping[str, float]  # when a message had left the links of each table, by its host's clock

FIRST: Over = {}  # there was no message before


@dataclass(frozen=True, slots=True)
class LinkPath:
    """`links`: by their numbers, of each table by its name. The slowest of them gives
    `bytes_per_s`; None: not paced."""

    links: Mapping[str, tuple[int, ...]]
    bytes_per_s: float | None
    latency_s: float


class PacedLinks:
    """`tables`: the files of all hosts' bookings, by name."""

    def __init__(self, tables: Mapping[str, NodeFile]) -> None:
        self._tables: dict[str, Bookings | FarFile] = {
            name: file if isinstance(file, FarFile) else Bookings(file.number)
            for name, file in tables.items()
        }

    def carry(
        self, path: LinkPath, num_bytes: int, *, urgent: bool = False, after: Over = FIRST
    ) -> Over:
        """Returns once the links of `path` could have carried the message; when it has left them,
        which is `after` of the copy's next chunk. PeerLost: a host of theirs has died."""
        if path.bytes_per_s is None:
            return FIRST
        busy_s, over, end_s = num_bytes / path.bytes_per_s, dict[str, float](), 0.0
        for name, links in path.links.items():
            table, after_s = self._tables[name], after.get(name)
            over_s, at_s = table.book(links, busy_s, urgent=urgent, after_s=after_s)
            while over_s is None:
                _sleep_until(at_s)
                over_s, at_s = table.book(links, busy_s, urgent=urgent, after_s=after_s)
            over[name], end_s = over_s, max(end_s, at_s)
        _sleep_until(end_s + path.latency_s)
        return over

    def book(self, path: LinkPath, num_bytes: int, *, far: bool = False) -> float:
        """Books an urgent message on this host's links of a path that is paced, behind those booked
        before; when it has left them, on the monotonic clock. `far`: on the other hosts' links,
        which waits for their answers; 0: there are none. PeerLost, as `carry`."""
        assert path.bytes_per_s is not None
        busy_s, end_s = num_bytes / path.bytes_per_s, 0.0
        for name, links in path.links.items():
            table = self._tables[name]
            if isinstance(table, FarFile) is far:
                end_s = max(end_s, table.book(links, busy_s, urgent=True).at_s)
        return end_s


def _sleep_until(at_s: float) -> None:
    left_s = at_s - time.monotonic()
    if left_s > 0:
        time.sleep(left_s)
