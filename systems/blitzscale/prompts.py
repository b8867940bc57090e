"""The prompts that wait for a prefill: one queue for all instances, first come first served.

An instance takes its next batch when it is free, so queued requests are always divided evenly.
Redirecting requests (§5.2, steps 1 and 3) then only means that another instance takes from the
queue.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable

from harness.request import Request


def order(request: Request) -> tuple[float, int]:
    """The order of service: by arrival."""
    return request.arrival_s, request.request_id


def kv_tokens(request: Request) -> int:
    """Tokens of KV at the request's end. The KV of the last token is never computed."""
    return request.prompt_tokens + request.output_tokens - 1


class Prompts:
    """The queue of one model."""

    def __init__(self, batch_tokens: int) -> None:
        """batch_tokens: of a batch at most; a longer prompt is a batch of its own."""
        self._batch_tokens = batch_tokens
        self._waiting: list[Request] = []  # in order of arrival
        self.tokens = 0
        self.kv_tokens = 0  # of KV that they will hold at their end

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, requests: Iterable[Request]) -> None:
        """Queues requests by arrival, also those that come back to be computed again."""
        for request in requests:
            insort(self._waiting, request, key=order)
            self.tokens += request.known_tokens
            self.kv_tokens += kv_tokens(request)

    def take(self, has_room: Callable[[Request], bool], takers: int = 1) -> list[Request]:
        """Removes and returns the next batch; empty if no request waits or has room.

        has_room: whether a request has room; if so, it reserves the room. takers: instances among
        which the waiting tokens are divided evenly.
        """
        batch: list[Request] = []
        left = min(self._batch_tokens, -(-self.tokens // takers))
        for request in self._waiting:
            left -= request.known_tokens
            if (batch and left < 0) or not has_room(request):
                break
            batch.append(request)
        del self._waiting[: len(batch)]
        self.tokens -= sum(request.known_tokens for request in batch)
        self.kv_tokens -= sum(kv_tokens(request) for request in batch)
        return batch
