"""What one endpoint sends and reads through one I/O thread; for other threads than that."""

from __future__ import annotations

from harness.drivers.connections import Connections
from harness.drivers.exchange import Exchange, Listener, Order
from harness.drivers.io_thread import IoThread


class Line:
    """`listener` is told what came of each order."""

    def __init__(self, url: str, io: IoThread, listener: Listener) -> None:
        self._pool, self._io, self._listener = Connections(url, io), io, listener

    def send(self, order: Order) -> None:
        self._io.urge(self._begin, order)

    def want(self, number: int) -> None:
        """Has `number` connections at hand soon."""
        self._io.call(self._pool.want, number)

    def prepare(self, number: int) -> None:
        """Returns when `number` connections are at hand, or raises OSError."""
        self._pool.prepare(number)

    def _begin(self, order: Order) -> None:
        Exchange(order, self._listener, self._pool, self._io).begin()
