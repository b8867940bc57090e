"""A queue that knows what its requests need in all, however many they are."""

from __future__ import annotations

from bisect import insort_left, insort_right
from collections import deque
from collections.abc import Iterable
from typing import NoReturn

from harness.request import Request


def _refused(*arguments: object) -> NoReturn:
    raise NotImplementedError("a Waiting would lose its sums")


class Waiting(deque[Request]):
    """Waiting requests in order of service: by priority, then as they came.

    `blocks`: of KV that they need; `tokens`: that they lack. While a request waits, its known
    tokens stay as they are and none of them is computed. What is not here is refused.
    """

    def __init__(self, block_tokens: int) -> None:
        super().__init__()
        self.blocks = self.tokens = 0
        self._block_tokens = block_tokens

    def blocks_of(self, request: Request) -> int:
        return -(-request.known_tokens // self._block_tokens)

    def put(self, request: Request) -> None:
        """Queues the request behind those of its priority."""
        if not self or _urgency(self[-1]) <= _urgency(request):
            self.append(request)
        else:
            insort_right(self, request, key=_urgency)

    def put_first(self, request: Request) -> None:
        """Queues the request before those of its priority."""
        if not self or _urgency(request) <= _urgency(self[0]):
            self.appendleft(request)
        else:
            insort_left(self, request, key=_urgency)

    def append(self, request: Request) -> None:
        self._count(request, 1)
        super().append(request)

    def appendleft(self, request: Request) -> None:
        self._count(request, 1)
        super().appendleft(request)

    def extend(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.append(request)

    def insert(self, place: int, request: Request) -> None:
        self._count(request, 1)
        super().insert(place, request)

    def popleft(self) -> Request:
        request = super().popleft()
        self._count(request, -1)
        return request

    def remove(self, request: Request) -> None:
        super().remove(request)
        self._count(request, -1)

    def clear(self) -> None:
        super().clear()
        self.blocks = self.tokens = 0

    pop = extendleft = __iadd__ = __imul__ = __setitem__ = __delitem__ = _refused

    def _count(self, request: Request, sign: int) -> None:
        self.tokens += sign * request.known_tokens
        self.blocks += sign * self.blocks_of(request)


def _urgency(request: Request) -> int:
    return -request.priority
