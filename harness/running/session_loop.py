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

from harness.clock import Event, Loop
from harness.records.record import Recorder
from harness.records.sessions import SESSIONS
from harness.request import Request
from harness.running.closed_loop import Server


class SessionLoop:
    def __init__(self, drain_s: float, *, loop: Loop, recorder: Recorder, system: Server) -> None:
        self._drain_s = drain_s
        self._loop, self._recorder, self._system = loop, recorder, system
        self._due: list[tuple[float, int, Request]] = []  # a heap
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
        ended, done = Event(loop), deque[Request]()
        in_flight: dict[int, Request] = {}

        def on_done(request: Request) -> None:
            if in_flight.pop(request.request_id, None) is not None:
                done.append(request)
                ended.set()

        recorder.on_done.append(on_done)
        while self._due or in_flight:
            while self._due and self._due[0][0] <= loop.now:
                request = heappop(self._due)[2]
                in_flight[request.request_id] = request
                recorder.sent(request, loop.now)
                self._system.submit(request)
            until_s = self._due[0][0] if self._due else loop.now + self._drain_s
            ended.clear()
            if not done and not await loop.wait(ended, until=until_s) and not self._due:
                for request in [*in_flight.values()]:
                    after = f"no turn ended for {self._drain_s:g} s (client.drain_s)"
                    recorder.failed(request, after, timeout=True)
            while done:
                self._follow(done.popleft())

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
