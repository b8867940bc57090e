"""Links that several processes share, each as slow as it is asked to be.

A table in shared memory has, for each link, the time until which it is taken. Who sends takes all
links of its path at once, under one lock, and then sleeps while the bytes would be on the wire. A
bulk message is booked only while its links are free, so that an urgent one waits for the chunk
under way on each link and no more; urgent ones book ahead, behind one another. The chunks of one
copy follow each other on the wire without a gap, as a DMA engine's would: what its sender lags
behind it catches up, and latency is the first one's alone. The lock is a file lock: the kernel
frees it when its holder dies.
"""

from __future__ import annotations

import fcntl
import mmap
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

ENTRY = struct.Struct("d")  # taken until, on the monotonic clock
SLACK_S = 0.0005  # a bulk message may be booked this long before its links are free
LAG_S = 0.005  # a sender that is later than this has left its links idle


@dataclass(frozen=True, slots=True)
class LinkPath:
    """`links`: by their numbers. The slowest of them gives `bytes_per_s`; None: not paced."""

    links: tuple[int, ...]
    bytes_per_s: float | None
    latency_s: float


class PacedLinks:
    """`file`: of `num_links` entries, inherited by every process that sends."""

    def __init__(self, file: int, num_links: int) -> None:
        self._file = file
        self._table = mmap.mmap(file, table_bytes(num_links))
        self._lock = threading.Lock()  # file locks do not keep out threads of one process

    def carry(
        self, path: LinkPath, num_bytes: int, *, urgent: bool = False, after_s: float = inf
    ) -> float:
        """Returns once the links of `path` could have carried the message; when it has left them,
        which is `after_s` of the copy's next chunk."""
        if path.bytes_per_s is None:
            return 0.0
        busy_s = num_bytes / path.bytes_per_s
        while True:
            over_s = self._book(path.links, busy_s, urgent, after_s)
            if over_s > 0:
                _sleep_until(over_s + path.latency_s)
                return over_s
            _sleep_until(-over_s)

    def book(self, path: LinkPath, num_bytes: int) -> float:
        """Books an urgent message, behind those booked before; when it arrives, on the monotonic
        clock."""
        if path.bytes_per_s is None:
            return 0.0
        return self._book(path.links, num_bytes / path.bytes_per_s, True) + path.latency_s

    def stall(self, links: Sequence[int], for_s: float) -> float:
        """Takes `links` for `for_s`, behind what has been booked; until when."""
        return self._book(links, for_s, True)

    def _book(
        self, links: Sequence[int], busy_s: float, urgent: bool, after_s: float = inf
    ) -> float:
        """When the message will be over; or, negative, when to ask again."""
        with self._lock:
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                now = time.monotonic()
                taken = [ENTRY.unpack_from(self._table, link * ENTRY.size) for link in links]
                free_s: float = max(taken)[0]
                if free_s > now + SLACK_S and not urgent:
                    return -(free_s - SLACK_S)
                begin_s = max(now, free_s)
                if free_s <= after_s < now:  # nobody else has had them since
                    begin_s = max(after_s, now - LAG_S)
                over_s = begin_s + busy_s
                for link in links:
                    ENTRY.pack_into(self._table, link * ENTRY.size, over_s)
                return over_s
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)


def table_bytes(num_links: int) -> int:
    return max(1, num_links) * ENTRY.size


def _sleep_until(at_s: float) -> None:
    left_s = at_s - time.monotonic()
    if left_s > 0:
        time.sleep(left_s)
