"""The player of sessions: an open loop of sessions, each a closed loop of its turns.

A session begins when the schedule says. Each later turn is sent when the answer before has ended
and its user has thought (`Turn.think_s`); that is its arrival, and its prompt begins with all that
was said before. A slow system is asked later, so tables and figures say "closed loop within
sessions".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from harness.records.sessions import SESSIONS
from harness.request import Request
from harness.running.client import Player


class SessionLoop(Player):
    def __init__(self, drain_s: float, **parts: Any) -> None:
        super().__init__(drain_s, **parts)
        self._due: list[tuple[float, int, Request]] = []  # a heap
        self._done = deque[Request]()  # turns that no next one follows yet
        self._next: dict[int, Request] = {}  # request_id -> the turn that its answer leads to

    async def play(self, requests: Sequence[Request]) -> None:
        """Sends `requests`, the turns of sessions, and returns when each has ended.

        A turn that fails ends its session: the turns behind it fail unsent. Where nothing is due
        and no turn ends for `drain_s`, those in flight are recorded as timed out.
        """
        loop, recorder = self._loop, self._recorder
        turns = [(request, request.turn) for request in requests if request.turn is not None]
        assert len(turns) == len(requests), "who chose this player has seen to it"
        sessions = len({turn.session for _, turn in turns})
        recorder.event(SESSIONS, "client", 0.0, 0.0, num_sessions=sessions)
        firsts = [request for request, turn in turns if turn.previous is None]
        self._due = [(request.arrival_s, request.request_id, request) for request in firsts]
        heapify(self._due)
        self._next = {t.previous.request_id: r for r, t in turns if t.previous is not None}
        recorder.on_done.append(self._on_done)
        while self._due or self._in_flight:
            while self._due and self._due[0][0] <= loop.now:
                self._send(heappop(self._due)[2])
            until_s = self._due[0][0] if self._due else loop.now + self._drain_s
            self._ended.clear()
            if not self._done and not await loop.wait(self._ended, until=until_s) and not self._due:
                self._time_out(f"no turn ended for {self._drain_s:g} s (client.drain_s)")
            while self._done:
                self._follow(self._done.popleft())

    def _on_done(self, request: Request) -> None:
        if request.request_id in self._in_flight:
            self._done.append(request)
        super()._on_done(request)

    def _follow(self, request: Request) -> None:
        """`request` has ended: its session's next turn is due once its user has thought."""
        following = self._next.pop(request.request_id, None)
        while following is not None and request.failed:
            following.arrival_s = self._loop.now
            self._recorder.failed(following, "the turn before failed, so this one was never sent")
            request, following = following, self._next.pop(following.request_id, None)
        if following is None:
            return
        assert following.turn is not None
        # A server may answer with fewer tokens than asked: the prompt is of what there is.
        following.prompt_tokens = request.known_tokens + following.turn.new_tokens
        ended_s = self._recorder.records[request.request_id].last_token_s
        following.arrival_s = ended_s + following.turn.think_s
        heappush(self._due, (following.arrival_s, following.request_id, following))
