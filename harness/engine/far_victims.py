"""What faults on purpose strike on other hosts: an instance's processes, by their node's agent, and
a node, whose agent dies. An agent looks itself whether a fault struck (`NodeAgent`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from harness.clock import Loop, WallLoop
from harness.device.victim import Victim
from harness.engine.agent import ANSWER_S, DEAD_S, Agent, AgentGone, answer_of
from harness.errors import RunError, UsageError


class FarProcesses(Victim):
    """`find`: the numbers of what `agent` has started for the instance, asked for when a fault
    strikes: a restart brings others. `expect`: what is to be told that a fault is planned."""

    def __init__(
        self, name: str, loop: Loop, agent: Agent, find: Callable[[], Iterable[int]],
        expect: Callable[[], None],
    ) -> None:  # fmt: skip
        assert isinstance(loop, WallLoop), "it is real time on nodes"
        self.name, self._loop, self._agent, self._find = name, loop, agent, find
        self._expect = expect
        self._killed: list[int] | None = None
        self._stalls = False

    def expect(self) -> None:
        self._expect()

    @property
    def alive(self) -> bool:
        """Where its agent does not answer in time, nothing is known: it counts as alive, and so a
        kill as one that did not strike."""
        return _answers(self._agent, "alive", self._pids())

    async def lives(self, loop: Loop) -> bool:
        return await _answers_beside(loop, self._agent, "alive", self._pids())

    def _pids(self) -> list[int]:
        return [*self._find()] if self._killed is None else self._killed

    def kill(self) -> None:
        self._killed = [*self._find()]
        self._agent.tell("strike", self._killed)

    async def stall(self, for_s: float) -> bool:
        """`for_s` is by the node's clock; the question and the answer come before and after."""
        pids, self._stalls = [*self._find()], True
        limit_s = for_s + ANSWER_S
        stall = partial(self._agent.ask, "stall", pids, for_s, timeout_s=limit_s)
        struck = await answer_of(self._loop, stall)
        self._stalls = False
        return bool(struck)

    def release(self) -> None:
        if self._stalls:
            self._agent.tell("release")


class FarNode(Victim):
    """A node of a cluster as a `Victim`, of kills alone: its agent dies, all that this has started
    with it, and what is in the node's memory is out of reach. Ray's own processes go on."""

    def __init__(self, number: int, agent: Agent) -> None:
        self.name, self._agent = f"host {number}", agent

    @property
    def alive(self) -> bool:
        return _answers(self._agent, "about")

    async def lives(self, loop: Loop) -> bool:
        return await _answers_beside(loop, self._agent, "about")

    def kill(self) -> None:
        self._agent.tell("die")

    async def stall(self, for_s: float) -> bool:
        raise UsageError(f"faults.stall: {self.name} cannot stall, only its instances can")


def _answers(agent: Agent, method: str, *arguments: object) -> bool:
    try:
        return bool(agent.ask(method, *arguments, timeout_s=DEAD_S))
    except AgentGone:
        return False
    except RunError:
        return True


async def _answers_beside(loop: Loop, agent: Agent, method: str, *arguments: object) -> bool:
    assert isinstance(loop, WallLoop), "it is real time on nodes"
    return bool(await answer_of(loop, partial(_answers, agent, method, *arguments)))
