"""What one endpoint sends and reads through one I/O thread."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from harness.drivers.connections import Connections
from harness.drivers.exchange import Exchange, Order
from harness.drivers.io_thread import IoThread
from harness.drivers.stream import Tally


@dataclass(slots=True)
class Ending:
    """How an exchange ended, at `at_s` of time.monotonic(). `error` None: the stream is over, and
    what the tally says of it is to be asked. `status`: HTTP's; 0: there were no headers."""

    error: str | None
    timeout: bool
    status: int
    tally: Tally
    at_s: float


class Listener(Protocol):
    """Is told in the run's loop what came of a request. Times are of time.monotonic()."""

    def sent(self, request_id: int, sent_s: float) -> None: ...

    def tokens(self, request_id: int, read_s: float, count: int) -> None: ...

    def ended(self, request_id: int, ending: Ending) -> None: ...


class Line:
    """`send`, `want` and `prepare` are for other threads than the I/O thread."""

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
        Exchange(order, self, self._pool, self._io).begin()

    def sent(self, exchange: Exchange, sent_s: float) -> None:
        """What came before is the client's lag, a wait for a connection too: one was to be open."""
        self._io.post(self._listener.sent, exchange.order.request_id, sent_s)

    def tokens(self, exchange: Exchange, read_s: float, count: int) -> None:
        self._io.post(self._listener.tokens, exchange.order.request_id, read_s, count)

    def ended(self, exchange: Exchange, error: str | None, *, timeout: bool) -> None:
        ending = Ending(error, timeout, exchange.status, exchange.tally, time.monotonic())
        self._io.post(self._listener.ended, exchange.order.request_id, ending)
