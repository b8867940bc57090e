"""An endpoint behind HTTP: requests out, streamed tokens in, each read stamped as it comes.

All sockets live in one I/O thread with an asyncio loop; it stamps, counts and posts, and the
harness's loop records. Knows nothing of where the server came from.
"""

from __future__ import annotations

import asyncio
import resource
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import aiohttp

from harness.clock import WallLoop
from harness.drivers.stream import EventSplitter, StreamError, Tally
from harness.record import Chunk, Recorder
from harness.request import Request

try:
    from uvloop import new_event_loop
except ImportError:  # a faster loop, where there is one
    from asyncio import new_event_loop

READ_BUFFER_BYTES = 1 << 20  # a read is never held back for a long event
IDLE_CONNECTION_S = 2.0  # below any server's own limit (vLLM: 5 s), or it closes as we send


class IoThread:
    """A thread with an asyncio loop and one HTTP session, from `with` to its end."""

    def __enter__(self) -> IoThread:
        _raise_file_limit()
        self._ready: Future[None] = Future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()
        self._ready.result()
        return self

    def __exit__(self, *_: object) -> None:
        """Drops every connection."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def touch(self, url: str, headers: Mapping[str, str], timeout_s: float) -> int:
        """Waits for an answer from `url` and returns its status, whichever it is; raises OSError
        where none comes.

        Besides, the session's first request costs some 10 ms that no measured one should pay.
        """

        async def ask() -> int:
            async with asyncio.timeout(timeout_s), self.session.get(url, headers=headers) as answer:
                await answer.read()
                return answer.status

        try:
            return asyncio.run_coroutine_threadsafe(ask(), self._loop).result()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise OSError(str(error) or f"no answer in {timeout_s:g} s") from error

    def start(self, coro: Coroutine[Any, Any, None]) -> None:
        """Thread-safe; returns at once."""
        self._loop.call_soon_threadsafe(self._start, coro)

    def _start(self, coro: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coro)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_CONNECTION_S),
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=READ_BUFFER_BYTES,
        ) as self.session:
            self._ready.set_result(None)
            await self._stop.wait()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)


@dataclass(slots=True)
class Target:
    """Where and how to ask for one completion."""

    url: str  # of the completions or chat API itself
    headers: Mapping[str, str]
    body: Callable[[Request], bytes]  # JSON; whatever it takes is the client's lag
    timeout_s: float  # from submission to the stream's end
    allow_early_end: bool  # an answer shorter than asked for is complete


class HttpEndpoint:
    def __init__(
        self,
        name: str,
        models: Sequence[str],
        target: Target,
        *,
        io: IoThread,
        loop: WallLoop,
        recorder: Recorder,
    ) -> None:
        self.name = name
        self.models = models
        self.num_corrected = 0  # answers whose usage disagreed with their number of chunks
        self._target = target
        self._io = io
        self._loop = loop
        self._recorder = recorder

    def submit(self, request: Request) -> None:
        self._io.start(self._serve(request))

    async def _serve(self, request: Request) -> None:
        """Streams one answer. Whatever comes of it, exactly one end is posted for `request`."""
        tally, timeout_s = Tally(request.output_tokens), self._target.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._stream(request, tally)
        except TimeoutError:
            error = f"not finished {timeout_s:g} s after it was sent, with {tally.progress}"
            self._post_end(request, error, timeout=True)
        except (aiohttp.ClientError, OSError) as broken:
            what = f"{type(broken).__name__}: {broken}".rstrip(": ")
            self._post_end(request, f"{what} (after {tally.progress})")
        except StreamError as broken:
            self._post_end(request, str(broken))
        except Exception as bug:
            self._loop.post(_raise, bug)  # ends the run: not a fault of the server
        else:
            self.num_corrected += tally.corrected
            self._post_end(request, tally.fault(self._target.allow_early_end))

    async def _stream(self, request: Request, tally: Tally) -> None:
        target, splitter = self._target, EventSplitter()
        body = target.body(request)
        # What came before is the client's lag; connecting and all that follows is the server's.
        self._loop.post(self._sent, request, time.monotonic())
        async with self._io.session.post(target.url, data=body, headers=target.headers) as response:
            if response.status != 200:
                text = " ".join((await response.text(errors="replace")).split())
                raise StreamError(f"HTTP {response.status}: {text[:200]}")
            async for data in response.content.iter_any():
                read_s = time.monotonic()
                self._count(request, tally, read_s, splitter.feed(data))
            self._count(request, tally, time.monotonic(), splitter.finish())

    def _count(
        self, request: Request, tally: Tally, read_s: float, payloads: Sequence[bytes]
    ) -> None:
        """Posts the tokens of one read. Those of one event came together: they are a chunk."""
        for payload in payloads:
            if tokens := tally.read(payload):
                self._loop.post(self._record, request, read_s, tokens)

    def _sent(self, request: Request, sent_s: float) -> None:
        self._recorder.sent(request, sent_s - self._loop.start_monotonic_s)

    def _record(self, request: Request, read_s: float, tokens: int) -> None:
        time_s = read_s - self._loop.start_monotonic_s
        self._recorder.segment([request], Chunk(time_s, tokens), self.name)
        request.generated_tokens += tokens

    def _post_end(self, request: Request, error: str | None, *, timeout: bool = False) -> None:
        if error is None:
            self._loop.post(self._recorder.completed, request)
        else:
            self._loop.post(self._fail, request, error, timeout)

    def _fail(self, request: Request, error: str, timeout: bool) -> None:
        self._recorder.failed(request, error, timeout=timeout)


def _raise(error: Exception) -> None:
    raise error


def _raise_file_limit() -> None:
    """Open connections are bounded by the system's hard limit, not by the usual soft 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
