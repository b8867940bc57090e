"""The prompts that wait for a prefill: one queue of all instances, first come first served.

An instance takes its next batch when it is free, so that queued requests are divided evenly at any
time: the redirections of §5.2's steps 1 and 3 are then nothing but who takes from the queue.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable

from harness.request import Request


def order(request: Request) -> tuple[float, int]:
    return request.arrival_s, request.request_id


def kv_tokens(request: Request) -> int:
    """That it holds KV for at its end: its last token's is never computed."""
    return request.prompt_tokens + request.output_tokens - 1


class Prompts:
    def __init__(self, batch_tokens: int) -> None:
        """`batch_tokens`: of a batch; one prompt may be longer."""
        self._batch_tokens = batch_tokens
        self._waiting: list[Request] = []  # in order of arrival
        self.tokens = 0
        self.kv_tokens = 0  # that they will hold at their end

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, requests: Iterable[Request]) -> None:
        """Those that come back, to be computed again, stand where they stood."""
        for request in requests:
            insort(self._waiting, request, key=order)
            self.tokens += request.known_tokens
            self.kv_tokens += kv_tokens(request)

    def take(self, has_room: Callable[[Request], bool], takers: int = 1) -> list[Request]:
        """The next batch, as far as `has_room`, which takes the room; []: nothing waits or there is
        none. `takers`: among whom what waits is divided evenly."""
        batch: list[Request] = []
        for request in self._next(-(-self.tokens // takers)):
            if not has_room(request):
                break
            batch.append(request)
        del self._waiting[: len(batch)]
        self.tokens -= sum(request.known_tokens for request in batch)
        self.kv_tokens -= sum(kv_tokens(request) for request in batch)
        return batch

    def _next(self, share_tokens: int) -> list[Request]:
        batch: list[Request] = []
        left = min(self._batch_tokens, share_tokens)
        for request in self._waiting:
            left -= request.known_tokens
            if batch and left < 0:
                break
            batch.append(request)
        return batch
