"""How far a worker's monotonic clock is from ours: by exchanges, of which the quickest counts."""

from __future__ import annotations

from collections import deque

NUM_EXCHANGES = 8  # the latest: clocks drift apart


class ClockOffset:
    def __init__(self) -> None:
        self._latest: deque[tuple[float, float]] = deque(maxlen=NUM_EXCHANGES)
        self.error_s = 0.0  # at most; half of the quickest exchange
        self.offset_s = 0.0  # its clock minus ours

    def add(self, sent_s: float, theirs_s: float, received_s: float) -> None:
        """An exchange: sent and received by our clock, answered at `theirs_s` by the worker's."""
        self._latest.append((received_s - sent_s, theirs_s - (sent_s + received_s) / 2))
        round_trip_s, offset_s = min(self._latest)
        self.error_s = round_trip_s / 2
        # On one host both read the same clock; the rest is noise of the exchange.
        self.offset_s = offset_s if abs(offset_s) > self.error_s else 0.0
