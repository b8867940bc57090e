"""One request and its answer on one connection: HTTP/1.1 taken apart, tokens counted, one end.

Every method of `Exchange` runs in the I/O thread. Whatever a server sends, an exchange ends once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import httptools

from harness.drivers.connections import Connection, Connections
from harness.drivers.io_thread import IoThread
from harness.drivers.stream import EventSplitter, StreamError, Tally, excerpt

MAX_HEAD_BYTES = 1 << 18
MAX_ERROR_BYTES = 4096  # read of the body of an answer that is an error
LINGER_S = 1.0  # after [DONE], for the connection to be ready for another request


@dataclass(frozen=True, slots=True)
class Order:
    """A request to send: `message` has headers and body. `keep`: what is said in the answer is
    kept."""

    request_id: int
    message: bytes
    asked_tokens: int
    timeout_s: float  # from now to the stream's end
    keep: bool


@dataclass(frozen=True, slots=True)
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

    def sent(self, request_id: int, sent_s: float) -> None:
        """What came before is the client's lag, a wait for a connection too: one was to be open."""

    def tokens(self, request_id: int, read_s: float, count: int) -> None: ...

    def ended(self, request_id: int, ending: Ending) -> None: ...


class Exchange:
    """Carries out `order`, and follows the answer."""

    def __init__(self, order: Order, listener: Listener, pool: Connections, io: IoThread) -> None:
        self.order = order
        self.tally = Tally(order.asked_tokens, keep=order.keep)
        self.status = 0  # HTTP's; 0: no headers yet
        self._listener = listener
        self._pool = pool
        self._io = io
        self._splitter = EventSplitter()
        self._parser = httptools.HttpResponseParser(self)
        self._connection: Connection | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._error_body = b""
        self._num_head_bytes = 0
        self._framed = False  # the headers say where the body ends
        self._complete = False  # all of the answer has come
        self._reusable = False
        self._fault: str | None = None
        self._over = False
        self._read_s = self._since_s = 0.0  # of what is parsed now: its stamp, and since when
        self._num_read = 0  # events with tokens in it

    def begin(self) -> None:
        self._timer = self._io.loop.call_later(self.order.timeout_s, self._time_out)
        self._pool.lend(self)

    def connected(self, connection: Connection) -> None:
        if self._over:  # timed out meanwhile
            self._pool.give_back(connection)
            return
        self._connection, connection.user = connection, self
        self._io.post(self._listener.sent, self.order.request_id, time.monotonic())
        connection.write(self.order.message)

    def not_connected(self, error: OSError) -> None:
        self._end(f"cannot connect: {excerpt(f'{type(error).__name__}: {error}')}")

    def parse(self, read_s: float, data: bytes | None, since_s: float) -> None:
        if self._connection is None:
            return  # given back or dropped
        if data is None:
            self._lost()
            return
        self._read_s, self._since_s = read_s, since_s
        self._num_read = 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise  # our own fault
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._reusable = False
            if not self._complete:
                self._fault = self._fault or f"no HTTP/1.1 ({error}), after {self.tally.progress}"
        if self.status == 0:
            self._num_head_bytes += len(data)
            if self._num_head_bytes > MAX_HEAD_BYTES:
                self._fault = "its headers have no end"
        if self._fault is not None:
            self._end(self._fault)
        elif self._complete:
            self._finish()
        elif self.tally.done and not self._over:  # some servers never end the stream itself
            self._end(None)
            self._timer = self._io.loop.call_later(LINGER_S, self._drop)

    def on_header(self, name: bytes, _: bytes) -> None:
        self._framed |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        if not self._complete:
            self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if self._over or self._complete or self._fault is not None:
            return
        if self.status == 200:
            self._count(self._splitter.feed, data)
            return
        self._error_body += data[: MAX_ERROR_BYTES - len(self._error_body)]
        if len(self._error_body) == MAX_ERROR_BYTES:
            self._fault = self._http_error()

    def on_message_complete(self) -> None:
        if self.status >= 200:  # below: "100 Continue", and the answer is still to come
            self._complete, self._reusable = True, self._parser.should_keep_alive()

    def _count(self, feed: Callable[..., list[bytes]], *data: bytes) -> None:
        """Tokens of one event came together."""
        try:
            for payload in feed(*data):
                if count := self.tally.read(payload):
                    self._num_read += 1
                    if self._num_read == 2:  # the stamp is the last one's, of one read
                        self._io.doubt(self._since_s, self._read_s)
                    self._io.post(self._listener.tokens, self.order.request_id, self._read_s, count)
                if self.tally.cut is not None or self.tally.done:
                    self._fault = self.tally.cut
                    return
        except StreamError as error:
            self._fault = str(error)

    def _finish(self) -> None:
        """The answer is complete."""
        if not self._over and self.status != 200:
            self._end(self._http_error(), keep=True)
        elif not self._over:
            if not self.tally.done:
                self._count(self._splitter.finish)
            self._end(self._fault, keep=True)
        self._drop()

    def _lost(self) -> None:
        """Ends the exchange with the connection, which ends the body where neither a length nor
        chunks frame it."""
        if self.status == 200 and not self._framed:
            self._finish()
        elif self.status in (0, 200):
            self._end(f"connection lost, after {self.tally.progress}")
        else:
            self._end(self._http_error())
        self._drop()

    def _http_error(self) -> str:
        return f"HTTP {self.status}: {excerpt(self._error_body.decode(errors='replace'))}"

    def _time_out(self) -> None:
        after = f"not finished {self.order.timeout_s:g} s after it was sent"
        error = f"{after}, with {self.tally.progress}"
        self._end(error, timeout=True)

    def _end(self, error: str | None, *, timeout: bool = False, keep: bool = False) -> None:
        """`keep`: the connection is looked after. Elsewhere an error costs the connection."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._over:
            self._over = True
            ending = Ending(error, timeout, self.status, self.tally, time.monotonic())
            self._io.post(self._listener.ended, self.order.request_id, ending)
        if error is not None and not keep:
            self._drop()

    def _drop(self) -> None:
        """Gives the connection back where another request can use it."""
        if self._timer is not None:
            self._timer.cancel()
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._complete and self._reusable and self._fault is None:
            self._pool.give_back(connection)
        else:
            connection.close()


class Line:
    """What one endpoint sends and reads through one I/O thread; for other threads than that.
    `listener` is told what came of each order."""

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
