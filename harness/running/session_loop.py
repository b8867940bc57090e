"""The player of sessions: an open loop of sessions, each a closed loop of its turns.

A session begins when the schedule says, or when the request that begins it has ended. Each later
turn is sent when the answer before has ended, and all else that it waits for (branches), and its
user has thought (`Turn.think_s`); that is its arrival, and its prompt begins with all that was said
before. A slow system is asked later, so tables and figures say "closed loop within
sessions".
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

from harness.records.sessions import SESSIONS
from harness.request import Request
from harness.running.client import Player


class SessionLoop(Player):
    def __init__(self, drain_s: float, **parts: Any) -> None:
        super().__init__(drain_s, **parts)
        self._due: list[tuple[float, int, Request]] = []  # a heap
        self._done = deque[Request]()  # turns that nothing follows yet
        self._next = defaultdict[int, list[Request]](list)  # request_id -> what waits for its end
        self._left: dict[int, int] = {}  # request_id -> how many it still waits for

    async def play(self, requests: Sequence[Request]) -> None:
        """Sends `requests`, the turns of sessions, and returns when each has ended.

        A turn that fails ends all that waits for it: that fails unsent. Where nothing is due
        and no turn ends for `drain_s`, those in flight are recorded as timed out.
        """
        loop, recorder = self._loop, self._recorder
        turns = [(request, request.turn) for request in requests if request.turn is not None]
        assert len(turns) == len(requests), "who chose this player has seen to it"
        sessions = len({turn.session for _, turn in turns})
        recorder.event(SESSIONS, "client", 0.0, 0.0, num_sessions=sessions)
        for request, turn in turns:
            self._left[request.request_id] = len(turn.earlier)
            for other in turn.earlier:
                self._next[other.request_id].append(request)
            if not turn.earlier:
                heappush(self._due, (request.arrival_s, request.request_id, request))
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
        """`request` has ended: what waited for it alone is due once its user has thought."""
        ended = [request]
        while ended:
            request = ended.pop()
            for following in self._next.pop(request.request_id, ()):
                if following.failed:
                    continue
                if request.failed:
                    following.arrival_s = self._loop.now
                    why = "a turn before failed, so this one was never sent"
                    self._recorder.failed(following, why)
                    ended.append(following)
                    continue
                self._left[following.request_id] -= 1
                if self._left[following.request_id] == 0:
                    self._await_user(following)

    def _await_user(self, request: Request) -> None:
        turn, records = request.turn, self._recorder.records
        assert turn is not None
        # A server may answer with fewer tokens than asked: the prompt is of what there is.
        known = 0 if turn.previous is None else turn.previous.known_tokens
        request.prompt_tokens = known + turn.new_tokens
        ended_s = max(records[each.request_id].last_token_s for each in turn.earlier)
        request.arrival_s = ended_s + turn.think_s
        heappush(self._due, (request.arrival_s, request.request_id, request))
