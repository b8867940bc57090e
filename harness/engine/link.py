"""One direction of the bus between host memory and a device, as slow as it is asked to be.

A machine whose memory is fast for its small models switches them too easily: with a rate, its
link is slow in proportion, as a GPU's is for large ones. Copies take their own time anyway; a
link only ever adds to that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class HostLink:
    """Shared by the threads that use it at the same time. `bytes_per_s`: None for no limit."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at_s = 0.0

    @contextmanager
    def carry(self, num_bytes: int) -> Iterator[None]:
        """The block copies `num_bytes`; returns once the link could have carried them after
        those before."""
        if self._bytes_per_s is None:
            yield
            return
        with self._lock:
            begin_s = max(time.monotonic(), self._free_at_s)
            over_s = self._free_at_s = begin_s + num_bytes / self._bytes_per_s
        yield
        time.sleep(max(0.0, over_s - time.monotonic()))
