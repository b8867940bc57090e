"""An OpenAI-compatible server that does exactly what a script says, faults included.

A client's measurement is judged against it: what it streamed, and when, is known. Raw sockets on
a free port of the loopback interface, in a thread. It keeps the time of every write, and how far
each is behind its script, on time.monotonic.

    python -m harness.selftest.golden_server PLAY.json LOG.json

is the server as a process of its own: it prints its port, plays PLAY.json (see `Play`), and writes
what it saw when its standard input ends, which is at the latest when its parent dies.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uvloop import new_event_loop

from harness.files import write_text
from harness.selftest.script import END, Play, Script, prompt_hash, stream

BACKLOG = 4096  # connections that may come at once
SEEN = "/v1/seen"  # how many requests came so far
AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset
TIMER_S = 0.001  # in steps of which the loop's timers come
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class Answer:
    head: str  # the request's header, in lower case
    body: dict[str, Any]
    received_s: float  # when the request was read to its end
    writes_s: list[float] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)  # of each write, behind the script
    blocked_s: float = 0.0  # for which the client did not take what was written


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
        self.most_open = 0  # answers under way at once
        self._num_open = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> GoldenServer:
        ready: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, args=[ready])
        self._thread.start()
        self.port = ready.result()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self, ready: Future[int]) -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(self._main(ready))

    async def _main(self, ready: Future[int]) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._handlers: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=BACKLOG)
        ready.set_result(server.sockets[0].getsockname()[1])
        await self._stop.wait()
        server.close()  # and at the loop's end all answers under way are cancelled

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._handle(reader, writer))
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Requests one after the other, until one is answered with a status."""
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                if head.startswith("get"):
                    self._get(head, writer)
                else:
                    length = int(head.split("content-length:")[1].split()[0])
                    body = json.loads(await reader.readexactly(length))
                    answer = Answer(head, body, time.monotonic())
                    self.answers.append(answer)
                    await self._answer(answer, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone: that is its right
        except RuntimeError:  # uvloop's, of what is written to a client that has gone
            if not writer.is_closing():
                raise
        finally:
            writer.close()

    async def _answer(self, answer: Answer, writer: asyncio.StreamWriter) -> None:
        self._num_open += 1
        self.most_open = max(self.most_open, self._num_open)
        try:
            await self._stream(answer, self._script(answer.body), writer)
        finally:
            self._num_open -= 1

    def _get(self, head: str, writer: asyncio.StreamWriter) -> None:
        if head.startswith("get /v1/models "):
            length = self.max_model_len
            listed = {"data": [{"id": name, "max_model_len": length} for name in self._models]}
            _respond(writer, 200, json.dumps(listed).encode())
        elif head.startswith("get /metrics ") and self.metrics:
            _respond(writer, 200, self.metrics.encode())
        elif head.startswith(f"get {SEEN} "):
            _respond(writer, 200, json.dumps({"num_requests": len(self.answers)}).encode())
        else:
            _respond(writer, 404, b"{}")

    async def _stream(self, answer: Answer, script: Script, writer: asyncio.StreamWriter) -> None:
        if script.status != 200:
            body = b'{"error": {"message": "as scripted"}}'
            return _respond(writer, script.status, body.ljust(script.error_bytes or 0, b"x"))
        writer.transport.set_write_buffer_limits(0)  # so that it shows what a client does not take
        writer.write(HEAD)
        made = stream(answer.body["max_tokens"], "messages" in answer.body, script)
        for after_s, pieces in made.writes:
            await _until(answer.received_s + after_s)
            for number, piece in enumerate(pieces, 1):
                now_s = time.monotonic()
                if number == len(pieces):
                    answer.writes_s.append(now_s)
                    answer.lags_s.append(now_s - answer.received_s - after_s)
                writer.write(piece)
                await writer.drain()
                answer.blocked_s += time.monotonic() - now_s
                if script.write_bytes:
                    await asyncio.sleep(TIMER_S)  # or the pieces would arrive as one
        if made.fault is not None:
            await _until(answer.received_s + made.fault_s)
        if made.fault == "reset":
            peer = writer.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            writer.transport.abort()
        elif made.fault == "hang":
            await asyncio.Event().wait()
        elif made.fault == "cut":
            writer.write(END)


async def _until(due_s: float) -> None:
    late_s = time.monotonic() - due_s
    await asyncio.sleep(TIMER_S / 2 - late_s if late_s < 0 else 0)


def _respond(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    head = f"HTTP/1.1 {status} As Scripted\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
    writer.write(head.encode() + b"\r\n" + body)
    writer.close()


def as_row(answer: Answer) -> dict[str, Any]:
    """What LOG.json has of one answer: no prompt, but its hash."""
    told = {key: value for key, value in vars(answer).items() if key not in ("head", "body")}
    return {"model": answer.body["model"], "prompt": prompt_hash(answer.body), **told}


def main(play_path: str, log_path: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's Ctrl-C ends its input
    play = Play.from_json(Path(play_path).read_text())
    gc.freeze()
    gc.disable()  # a search through all answers would hold up their writes
    with GoldenServer(play, list(play.models)) as server:
        server.max_model_len = play.max_model_len
        print(server.port, flush=True)
        sys.stdin.read()
    log = {"most_open": server.most_open, "answers": [as_row(each) for each in server.answers]}
    write_text(Path(log_path), json.dumps(log))


if __name__ == "__main__":
    main(*sys.argv[1:])
