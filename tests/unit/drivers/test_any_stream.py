"""Whatever a server sends, and however it is cut: one end, bounded counts, text that can be
written, and no exception."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from harness.drivers.connections import Connection, Connections
from harness.drivers.exchange import Ending, Exchange, Order
from harness.drivers.io_thread import IoThread
from harness.drivers.stream import EventSplitter, StreamError, Tally
from harness.records.record import Recorder
from harness.records.tables import requests_table
from harness.request import Request
from tests.examples import examples

KEYS = st.sampled_from(
    ["choices", "usage", "text", "delta", "content", "tool_calls", "completion_tokens", "error",
     "prompt_tokens", "prompt_tokens_details", "cached_tokens", "finish_reason", "message", "x"]
)  # fmt: skip
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 40), st.sampled_from([3_000_000_000, 10**30, -1]),
    st.floats(), st.sampled_from(["", " a", "\ud800", "stop", "x" * 400]), st.text(max_size=5),
)  # fmt: skip
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
USAGE = st.dictionaries(
    st.sampled_from(["completion_tokens", "prompt_tokens", "prompt_tokens_details"]), JSON
)
LIKELY = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(st.fixed_dictionaries({}, optional={"text": LEAVES, "delta": JSON})),
        "usage": USAGE | LEAVES,
        "error": JSON,
    },
)
PAYLOADS = st.one_of(
    (LIKELY | JSON).map(lambda value: json.dumps(value).encode()),
    st.just(b"[DONE]"),
    st.binary(max_size=30),
    st.sampled_from([b"[" * 5000, b"9" * 5000, b'{"usage": {"completion_tokens": NaN}}', b""]),
)
LINES = st.one_of(
    PAYLOADS.map(lambda payload: b"data: " + payload + b"\n\n"),
    st.sampled_from([b": comment\n", b"event: ping\r\n", b"\n", b"data:", b"\r\n\r\n"]),
    st.binary(max_size=20),
)
STREAMS = st.lists(LINES, max_size=12).map(b"".join)
CUTS = st.lists(st.integers(1, 60), min_size=1, max_size=8)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, at = [], 0
    while at < len(data):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(data[at : at + size])
        at += size
    return pieces


def checked(tally: Tally, num_tokens: int) -> None:
    """What holds of any tally at any time."""
    assert 0 <= tally.num_tokens == num_tokens <= tally.max_tokens
    fault = tally.fault(allow_early_end=True)
    (fault or "").encode()
    request = Request(0, 0.0, "m", 1, tally.asked_tokens)
    recorder = Recorder([request])
    recorder.reported(request, tally.reported())
    recorder.failed(request, fault or "none")
    assert len(requests_table(recorder)) == 1


@examples(300)
@given(stream=STREAMS, sizes=CUTS, asked=st.integers(1, 20))
def test_any_stream_of_events_gives_bounded_counts_or_one_sentence(
    stream: bytes, sizes: list[int], asked: int
) -> None:
    tally, splitter, num_tokens, said = Tally(asked), EventSplitter(), 0, ""
    try:
        for piece in cut(stream, sizes):
            for payload in splitter.feed(piece):
                num_tokens += tally.read(payload)
    except StreamError as error:
        said = str(error)
    assert len(said.encode()) < 1000
    checked(tally, num_tokens)


class Stage:
    """The loop, pool, connection and owner of one exchange, without a socket or a clock."""

    def __init__(self) -> None:
        self.loop = self
        self.lent = 0
        self.timers: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.ends: list[str | None] = []
        self.doubts: list[tuple[float, float]] = []
        self.num_tokens = 0

    def call_later(
        self, _: float, function: Callable[..., None], *args: Any
    ) -> asyncio.TimerHandle:
        self.timers.append((function, args))
        return cast(asyncio.TimerHandle, self)

    def cancel(self) -> None:
        self.timers.clear()

    def lend(self, user: Exchange) -> None:
        self.lent += 1
        user.connected(cast(Connection, self))

    def give_back(self, _: Connection) -> None:
        self.lent -= 1

    def close(self) -> None:
        self.lent -= 1

    def write(self, _: bytes) -> None:
        pass

    def doubt(self, since_s: float, read_s: float) -> None:
        self.doubts.append((since_s, read_s))

    def post(self, function: Callable[..., None], *args: Any) -> None:
        function(*args)

    def sent(self, request_id: int, sent_s: float) -> None:
        pass

    def tokens(self, request_id: int, read_s: float, count: int) -> None:
        assert count > 0
        assert not self.ends
        self.num_tokens += count

    def ended(self, request_id: int, ending: Ending) -> None:
        if ending.error is not None:
            assert len(ending.error) < 500
            ending.error.encode()
        checked(ending.tally, self.num_tokens)
        self.ends.append(ending.error)


STATUS = st.sampled_from([200, 200, 200, 200, 100, 101, 204, 302, 400, 404, 500, 999])
FRAMES = st.sampled_from(["chunked", "length", "none", "wrong length", "broken chunks"])


def answer(status: int, frame: str, body: bytes, sizes: list[int], close: bool) -> bytes:
    head = f"HTTP/1.1 {status} Said\r\n" + ("connection: close\r\n" if close else "")
    if frame == "chunked":
        chunks = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in cut(body, sizes)]
        return (
            f"{head}transfer-encoding: chunked\r\n\r\n".encode() + b"".join(chunks) + b"0\r\n\r\n"
        )
    if frame == "broken chunks":
        return f"{head}transfer-encoding: chunked\r\n\r\n".encode() + body
    if frame == "none":
        return f"{head}\r\n".encode() + body
    length = len(body) + (7 if frame == "wrong length" else 0)
    return f"{head}content-length: {length}\r\n\r\n".encode() + body


def exchanged(data: bytes, sizes: list[int], end: str) -> Stage:
    stage = Stage()
    order = Order(0, b"POST", asked_tokens=5, timeout_s=60.0, keep=False)
    exchange = Exchange(order, stage, cast(Connections, stage), cast(IoThread, stage))
    exchange.begin()
    for piece in cut(data, sizes):
        exchange.parse(0.0, piece, 0.0)
    if end == "lost":
        exchange.parse(0.0, None, 0.0)
    for function, args in list(stage.timers):
        function(*args)
    exchange.parse(0.0, b"HTTP/1.1 200 Too late\r\n\r\n", 0.0)
    exchange.parse(0.0, None, 0.0)
    return stage


@examples(400)
@given(
    status=STATUS,
    frame=FRAMES,
    body=STREAMS,
    sizes=CUTS,
    close=st.booleans(),
    end=st.sampled_from(["lost", "silence"]),
)
def test_any_answer_ends_once_and_frees_its_connection(
    status: int, frame: str, body: bytes, sizes: list[int], close: bool, end: str
) -> None:
    stage = exchanged(answer(status, frame, body, sizes, close), sizes, end)
    assert len(stage.ends) == 1
    assert stage.lent == 0


@examples(150)
@given(data=st.binary(max_size=200), sizes=CUTS, end=st.sampled_from(["lost", "silence"]))
def test_any_bytes_at_all_end_once(data: bytes, sizes: list[int], end: str) -> None:
    stage = exchanged(data, sizes, end)
    assert len(stage.ends) == 1
    assert stage.lent == 0


def test_headers_and_events_without_an_end_are_not_kept_for_ever() -> None:
    endless = b"HTTP/1.1 200 OK\r\n" + b"x-filler: 1\r\n" * 100_000
    assert exchanged(endless, [1 << 16], "silence").ends == ["its headers have no end"]
    line = b"HTTP/1.1 200 OK\r\n\r\ndata: " + b"x" * (20 << 20)
    (error,) = exchanged(line, [1 << 16], "silence").ends
    assert error == "an event is longer than 16 MiB"


def test_only_events_that_were_read_together_have_a_doubtful_stamp() -> None:
    stage = Stage()
    order = Order(0, b"POST", asked_tokens=5, timeout_s=60.0, keep=False)
    exchange = Exchange(order, stage, cast(Connections, stage), cast(IoThread, stage))
    exchange.begin()
    event = b'data: {"choices": [{"text": "word"}]}\n\n'
    exchange.parse(1.0, b"HTTP/1.1 200 OK\r\n\r\n" + event, 0.5)
    exchange.parse(2.0, event[:10], 1.0)
    exchange.parse(3.0, event[10:], 2.0)
    assert stage.doubts == []
    exchange.parse(4.0, event + event, 3.5)
    assert stage.doubts == [(3.5, 4.0)]
    assert stage.num_tokens == 4
