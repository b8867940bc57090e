"""How far a worker's monotonic clock is from ours: by exchanges, of which the quickest counts.

An offset is wrong by at most half of its exchange's round trip, and what of it is not used.
"""

from __future__ import annotations

from collections import deque

NUM_EXCHANGES = 8  # the latest: clocks drift apart


class ClockOffset:
    """`worst_s`: the error of offsets that were used before, to the same worker's name."""

    def __init__(self, worst_s: float = 0.0) -> None:
        self._latest: deque[tuple[float, float]] = deque(maxlen=NUM_EXCHANGES)
        self._worst_s = worst_s
        self.error_s = worst_s  # at most, of each offset since there were NUM_EXCHANGES
        self.offset_s = 0.0  # its clock minus ours

    def add(self, sent_s: float, theirs_s: float, received_s: float) -> None:
        """An exchange: sent and received by our clock, answered at `theirs_s` by the worker's."""
        used = len(self._latest) == NUM_EXCHANGES  # the handshake is over
        self._latest.append((received_s - sent_s, theirs_s - (sent_s + received_s) / 2))
        round_trip_s, offset_s = min(self._latest)
        # On one host both read the same clock; the rest is noise of the exchange.
        self.offset_s = offset_s if abs(offset_s) > round_trip_s / 2 else 0.0
        error_s = round_trip_s / 2 + abs(offset_s - self.offset_s)
        self.error_s = max(self.error_s if used else self._worst_s, error_s)
