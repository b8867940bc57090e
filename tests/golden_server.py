"""An OpenAI-compatible server that does exactly what a script says, faults included.

A client's measurement is judged against it: what it streamed, and when, is known. Raw sockets on
a free loopback port, in a thread. It keeps the time of every write, on time.monotonic.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class Script:
    """How one answer is streamed. Token positions count from 0; None: it does not happen."""

    ttft_s: float = 0.0
    gap_s: float = 0.0  # between events
    tokens_per_event: int = 1
    events_per_write: int = 1
    write_bytes: int | None = None  # cuts what is written into pieces of this size
    pad_bytes: int = 0  # further text in each event
    usage: str = "continuous"  # continuous, final or none
    status: int = 200
    stall_at: int | None = None  # before this token, for stall_s
    stall_s: float = 0.0
    stop_at: int | None = None  # an end as by an end-of-sequence token
    reset_at: int | None = None
    error_at: int | None = None  # an error event in mid-stream
    hang_at: int | None = None
    cut_at: int | None = None  # the stream ends in order, but without finish and [DONE]
    garbage_at: int | None = None  # an event that is not JSON
    extra_tokens: int = 0  # beyond what was asked for
    prompt_tokens: int | None = None  # that usage reports
    cached_tokens: int | None = None  # of those
    usage_tokens: int | None = None  # that the usage at the end claims
    tool_calls: bool = False  # pieces of a tool call instead of text; chat only
    endless: bool = False  # the stream stays open after [DONE]
    error_bytes: int | None = None  # an error's body is this long
    message: str = "out of cheese"  # of an error


@dataclass
class Answer:
    head: str  # the request's header, in lower case
    body: dict[str, Any]
    writes_s: list[float] = field(default_factory=list)


class GoldenServer:
    """`script` picks the script of a request from its JSON body; `models` are listed at /models.
    Use with `with`."""

    def __init__(
        self, script: Callable[[dict[str, Any]], Script], models: Sequence[str] = ("default",)
    ) -> None:
        self._script = script
        self._models = models
        self.metrics = ""  # the page at /metrics
        self.max_model_len: int | None = None  # that /models tells
        self.answers: list[Answer] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> GoldenServer:
        ready: Future[int] = Future()
        self._thread = threading.Thread(target=asyncio.run, args=[self._main(ready)])
        self._thread.start()
        self.port = ready.result()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _main(self, ready: Future[int]) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._handlers: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        ready.set_result(server.sockets[0].getsockname()[1])
        await self._stop.wait()
        server.close()
        for task in self._handlers:
            task.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._handle(reader, writer))
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            if head.startswith("get"):
                self._get(head, writer)
            else:
                length = int(head.split("content-length:")[1].split()[0])
                body = json.loads(await reader.readexactly(length))
                answer = Answer(head, body)
                self.answers.append(answer)
                await self._stream(answer, self._script(body), writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone: that is its right
        finally:
            writer.close()

    def _get(self, head: str, writer: asyncio.StreamWriter) -> None:
        if head.startswith("get /v1/models "):
            length = self.max_model_len
            listed = {"data": [{"id": name, "max_model_len": length} for name in self._models]}
            _respond(writer, 200, json.dumps(listed).encode())
        elif head.startswith("get /metrics ") and self.metrics:
            _respond(writer, 200, self.metrics.encode())
        else:
            _respond(writer, 404, b"{}")

    async def _stream(self, answer: Answer, script: Script, writer: asyncio.StreamWriter) -> None:
        if script.status != 200:
            body = b'{"error": {"message": "as scripted"}}'
            return _respond(writer, script.status, body.ljust(script.error_bytes or 0, b"x"))
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        )
        await asyncio.sleep(script.ttft_s)
        pending: list[bytes] = []
        for position, payload in _events(answer.body, script):
            faults = {script.reset_at: "reset", script.hang_at: "hang", script.cut_at: "cut"}
            fault = faults.get(position) if position is not None else None
            if fault:
                await self._write(writer, script, pending, answer)
            if fault == "reset":
                writer.transport.abort()
                return
            if fault == "hang":
                await asyncio.Event().wait()
            if fault == "cut":
                break
            if position is not None and position == script.stall_at:
                await asyncio.sleep(script.stall_s)
            pending.append(b"data: " + payload + b"\n\n")
            if len(pending) >= script.events_per_write:
                await self._write(writer, script, pending, answer)
                await asyncio.sleep(script.gap_s)
        await self._write(writer, script, pending, answer)
        if script.endless:
            await asyncio.Event().wait()
        writer.write(b"0\r\n\r\n")

    async def _write(
        self, writer: asyncio.StreamWriter, script: Script, pending: list[bytes], answer: Answer
    ) -> None:
        data = b"".join(pending)
        pending.clear()
        size = script.write_bytes or max(1, len(data))
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            if start + size >= len(data):
                answer.writes_s.append(time.monotonic())
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
            if script.write_bytes:
                await asyncio.sleep(0.001)  # or the pieces would arrive as one


def _events(body: dict[str, Any], script: Script) -> list[tuple[int | None, bytes]]:
    """(position of its first token, payload) of each event; None where it has no token."""
    chat = "messages" in body
    asked = body["max_tokens"] + script.extra_tokens
    total = asked if script.stop_at is None else min(asked, script.stop_at)
    events: list[tuple[int | None, bytes]] = []
    for position in range(0, total, script.tokens_per_event):
        sent = min(position + script.tokens_per_event, total)
        text = " word" * (sent - position) + "x" * script.pad_bytes
        choice: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
        if script.tool_calls:
            choice = {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}}
        if sent == total:
            choice["finish_reason"] = "length" if total == asked else "stop"
        event: dict[str, Any] = {"choices": [choice]}
        if script.usage == "continuous":
            event["usage"] = _usage(script, sent)
        covers = range(position, sent)
        if script.error_at in covers:
            event = {"error": {"message": script.message, "code": 500}}
        events.append((position, json.dumps(event).encode()))
        if script.error_at in covers:
            break
        if script.garbage_at in covers:
            events[-1] = (position, b"{not json")
    if script.usage in ("continuous", "final"):
        told = total if script.usage_tokens is None else script.usage_tokens
        usage = {"choices": [], "usage": _usage(script, told)}
        events.append((None, json.dumps(usage).encode()))
    return [*events, (None, b"[DONE]")]


def _usage(script: Script, completion_tokens: int) -> dict[str, Any]:
    usage: dict[str, Any] = {"completion_tokens": completion_tokens}
    if script.prompt_tokens is not None:
        usage["prompt_tokens"] = script.prompt_tokens
    if script.cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": script.cached_tokens}
    return usage


def _respond(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    head = f"HTTP/1.1 {status} As Scripted\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
    writer.write(head.encode() + b"\r\n" + body)
