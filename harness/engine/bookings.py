"""When links are free: a table in shared memory, one for the links of each host.

It has, for each link, the time until which it is taken. Who asks gets all that he asks for at once,
under one lock. The lock is a file lock: the kernel frees it when its holder dies.
"""

from __future__ import annotations

import fcntl
import mmap
import struct
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

ENTRY = struct.Struct("d")  # taken until, on the host's monotonic clock
SLACK_S = 0.0005  # a bulk message may be booked this long before its links are free
LAG_S = 0.005  # a sender that is later than this has left its links idle


class Booking(NamedTuple):
    """`over_s`: when the links will have carried the message, on their host's monotonic clock;
    None: they are taken. `at_s`: the same, or when to ask again, on the clock of who asks."""

    over_s: float | None
    at_s: float


class Bookings:
    """`file`: inherited by every process of the host that books."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._table = mmap.mmap(file, 0)
        self._lock = threading.Lock()  # file locks do not keep out threads of one process

    def book(
        self, links: Sequence[int], busy_s: float, *, urgent: bool, after_s: float | None = None
    ) -> Booking:
        """Books `links` for a message that takes them for `busy_s`. `after_s`: when they had
        carried the copy's chunk before."""
        with self._lock:
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                now = time.monotonic()
                taken = [ENTRY.unpack_from(self._table, link * ENTRY.size) for link in links]
                free_s: float = max(taken)[0]
                if free_s > now + SLACK_S and not urgent:
                    return Booking(None, free_s - SLACK_S)
                begin_s = max(now, free_s)
                if after_s is not None and free_s <= after_s < now:  # nobody had them since
                    begin_s = max(after_s, now - LAG_S)
                over_s = begin_s + busy_s
                for link in links:
                    ENTRY.pack_into(self._table, link * ENTRY.size, over_s)
                return Booking(over_s, over_s)
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)

    def stall(self, links: Sequence[int], for_s: float) -> float:
        """Takes `links` for `for_s`, behind what has been booked; in how many seconds that ends."""
        return self.book(links, for_s, urgent=True).at_s - time.monotonic()


def table_bytes(num_links: int) -> int:
    return max(1, num_links) * ENTRY.size
