"""The prompts that wait for a prefill: one queue of all instances, first come first served.

An instance takes its next batch when it is free, so that queued requests are divided evenly at any
time: the redirections of §5.2's steps 1 and 3 are then nothing but who takes from the queue.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

from harness.device.block_pool import BlockPool
from harness.request import Request


def order(request: Request) -> tuple[float, int]:
    return request.arrival_s, request.request_id


class Prompts:
    def __init__(self, batch_tokens: int) -> None:
        """`batch_tokens`: of a batch; one prompt may be longer."""
        self._batch_tokens = batch_tokens
        self._waiting: list[Request] = []  # in order of arrival
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, requests: Iterable[Request]) -> None:
        """Those that come back, to be computed again, stand where they stood."""
        for request in requests:
            insort(self._waiting, request, key=order)
            self.tokens += request.known_tokens

    def form(self) -> list[Request]:
        """The next batch, without room for its KV; []: nothing waits."""
        batch = self._next()
        del self._waiting[: len(batch)]
        self.tokens -= sum(request.known_tokens for request in batch)
        return batch

    def take(self, kv: BlockPool) -> list[Request]:
        """The next batch, whose blocks it grows in `kv`; []: nothing waits or there is no room."""
        batch: list[Request] = []
        for request in self._next():
            if not kv.grow(request, request.known_tokens):
                break
            batch.append(request)
        del self._waiting[: len(batch)]
        self.tokens -= sum(request.known_tokens for request in batch)
        return batch

    def _next(self) -> list[Request]:
        batch: list[Request] = []
        left = self._batch_tokens
        for request in self._waiting:
            left -= request.known_tokens
            if batch and left < 0:
                break
            batch.append(request)
        return batch
