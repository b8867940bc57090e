"""Faults on purpose: instances, hosts, links or parts of a system that die, stall or run slowly, at
a given time or after so many requests.

faults.kill=[{instance: 1, at_s: 20}, {host: 0, after_requests: 30}, {part: coordinator, at_s: 5}]
faults.stall=[{instance: 1, at_s: 5, for_s: 3}, {link: 0, at_s: 5, for_s: 3, factor: 4}]

Whether each struck is looked at, and becomes an event of the run: kind `fault`, with what was
planned, whether it struck and, if not, why. A run with a fault that did not strike is INVALID.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, ClassVar

from harness.clock import Event, Loop
from harness.cluster import Cluster
from harness.configuration.checks import at_least, require
from harness.device.victim import Victim
from harness.errors import UsageError
from harness.records.record import Recorder
from harness.request import Request
from harness.schedule import Schedule

PERIOD_S = 0.1  # in each of which what is slow stalls once; a stop is seen within 5 ms


@dataclass(kw_only=True, slots=True)
class Fault:
    """Names one of what its kind can strike."""

    instance: int | None = None  # in the order in which the system places them, from 0
    part: str | None = None  # what a system has beside instances: AQUA's coordinator
    at_s: float | None = None  # since the run began
    after_requests: int | None = None  # once so many requests have ended

    def __post_init__(self) -> None:
        at_s, after = self.at_s, self.after_requests
        both = f"at_s={at_s}, after_requests={after}"
        require((at_s is None) != (after is None), f"{both}: one of the two is to be given")
        finite = at_s is None or (isfinite(at_s) and at_s >= 0)
        require(finite, f"at_s={at_s} must be a finite time of at least 0 s")
        at_least(self, 1, "", "after_requests")
        one = sum(each is not None for each in self._named().values()) == 1
        every = ", ".join(f"{key}={value}" for key, value in self._named().items())
        require(one, f"{every}: one of these is to be given")

    def _named(self) -> dict[str, int | str | None]:
        return {"instance": self.instance, "part": self.part}

    @property
    def whom(self) -> str:
        return next(f"{key} {value}" for key, value in self._named().items() if value is not None)

    @property
    def planned(self) -> str:
        """The fault in words."""
        after = f"after {self.after_requests} requests"
        return f"{self.whom} {after if self.at_s is None else f'at {self.at_s:g} s'}{self._how()}"

    def _how(self) -> str:
        return ""


@dataclass(kw_only=True, slots=True)
class Kill(Fault):
    key: ClassVar = "kill"
    host: int | None = None  # a node, with its instances and what its memory holds, from 0

    def _named(self) -> dict[str, int | str | None]:
        return {"instance": self.instance, "host": self.host, "part": self.part}


@dataclass(kw_only=True, slots=True)
class Stall(Fault):
    key: ClassVar = "stall"
    link: int | None = None  # an instance, whose links carry nothing meanwhile
    for_s: float
    factor: float | None = None  # it goes on, so many times as slowly; None: it does nothing

    def __post_init__(self) -> None:
        Fault.__post_init__(self)
        finite = isfinite(self.for_s) and self.for_s > 0
        require(finite, f"for_s={self.for_s} must be a finite time above 0 s")
        slower = self.factor is None or (isfinite(self.factor) and self.factor > 1)
        require(slower, f"factor={self.factor} must be a finite number above 1")

    def _how(self) -> str:
        return "" if self.factor is None else f", {self.factor:g} times as slow"

    def _named(self) -> dict[str, int | str | None]:
        return {"instance": self.instance, "link": self.link, "part": self.part}

    async def strike(self, victim: Victim, loop: Loop) -> bool:
        """Whether it struck all the time."""
        if self.factor is None:
            return await victim.stall(self.for_s)
        periods = max(1, round(self.for_s / PERIOD_S))
        period_s = self.for_s / periods
        for _ in range(periods):
            end_s = loop.now + period_s
            if not await victim.stall(period_s * (1 - 1 / self.factor)):
                return False
            await loop.sleep_until(end_s)
        return True


@dataclass(kw_only=True, slots=True)
class Faults:
    kill: list[Kill] = field(default_factory=list)
    stall: list[Stall] = field(default_factory=list)

    @property
    def every(self) -> list[Kill | Stall]:
        return [*self.kill, *self.stall]


def check(faults: Faults, schedule: Schedule, num_instances: int, *, ours: bool) -> None:
    """Raises UsageError for what cannot strike, before anything is started. `ours`: the instances
    are this harness's to kill."""
    end_s, total = float(schedule.arrival_s[-1]), len(schedule.arrival_s)
    for fault in faults.every:
        key, link = fault.key, fault.link if isinstance(fault, Stall) else None
        require(
            ours,
            f"faults.{key} strikes instances that this harness starts, and this engine has none: "
            "choose engine=torch, engine=vllm or engine=sim",
        )
        at_s, after = fault.at_s, fault.after_requests
        for number in (fault.instance, link):
            known = number is None or 0 <= number < num_instances
            names = f"faults.{key} names {fault.whom}; valid: 0 to {num_instances - 1}"
            require(known, names)
        late = f"faults.{key} at_s={at_s} is after the last arrival; valid: up to {end_s:g}"
        require(at_s is None or at_s <= end_s, late)
        many = f"faults.{key} after_requests={after} is not before the last of {total} requests"
        require(after is None or after < total, f"{many}; valid: 1 to {total - 1}")


@contextmanager
def striking(
    faults: Faults, cluster: Cluster, parts: Mapping[str, Victim], loop: Loop, recorder: Recorder
) -> Iterator[None]:
    """Has `faults` happen in their time while a run lasts. `parts`: what the system has beside
    instances, by name. Stalled processes go on at the end, however it comes. UsageError where the
    cluster or the system cannot lose what is named."""
    strikes: list[Strike] = []
    for fault in faults.every:
        victim = _victim(fault, cluster, parts)
        victim.expect()
        strikes.append(Strike(fault, victim, loop, recorder))
    hosts = {kill.host for kill in faults.kill if kill.host is not None}
    known = set(cluster.elastic.hosts) if cluster.elastic is not None else set()
    known |= set(range(len(cluster.hosts)))
    require(not hosts or known - hosts, f"faults.kill names all {len(hosts)} hosts: leave one")
    for strike in strikes:
        loop.spawn(strike.run(), name=f"{strike.fault.key} {strike.victim.name}")
    try:
        yield
    finally:
        for strike in strikes:
            strike.end()


def _victim(fault: Kill | Stall, cluster: Cluster, parts: Mapping[str, Victim]) -> Victim:
    if fault.part is not None:
        valid = ", ".join(parts) or "none in this run"
        require(fault.part in parts, f"faults.{fault.key} names part {fault.part}; valid: {valid}")
        return parts[fault.part]
    if isinstance(fault, Kill) and fault.host is not None:
        if not cluster.hosts:
            return Host(cluster, fault.host)
        last = len(cluster.hosts) - 1
        require(0 <= fault.host <= last, f"faults.kill names host {fault.host}; valid: 0 to {last}")
        return cluster.hosts[fault.host]
    if isinstance(fault, Stall) and fault.link is not None:
        return Links(cluster, fault.link)
    return cluster.victims[fault.instance or 0]


class Host(Victim):
    """A node as a `Victim`, of kills alone."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        elastic = cluster.elastic
        if elastic is None or elastic.on_host_lost is None:
            raise UsageError(
                f"faults.kill names host {number}, but this system's hosts cannot fail; name its "
                "instances, or choose +system=blitzscale"
            )
        last = len(elastic.hosts) - 1
        require(number in elastic.hosts, f"faults.kill names host {number}; valid: 0 to {last}")
        self.name, self._cluster, self._number = f"host {number}", elastic, number

    @property
    def alive(self) -> bool:
        return not self._cluster.hosts[self._number].lost

    def kill(self) -> None:
        self._cluster.kill_host(self._number)

    async def stall(self, for_s: float) -> bool:
        raise UsageError(f"faults.stall: {self.name} cannot stall, only its instances can")


class Links(Victim):
    """The links of one instance as a `Victim`, of stalls alone."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        elastic = cluster.elastic
        if elastic is None or not elastic.paced:
            raise UsageError(
                f"faults.stall names link {number}, but this run's links are not the harness's to "
                "stall; choose engine=sim or engine=torch_paced, and a system such as blitzscale"
            )
        self._elastic, self._instance = elastic, elastic.instances[number]
        self.name = f"links of {self._instance.name}"

    @property
    def alive(self) -> bool:
        return self._instance.lost is None

    def kill(self) -> None:
        raise UsageError(f"faults.kill: {self.name} cannot die, only stall")

    async def stall(self, for_s: float) -> bool:
        return await self._elastic.stall_links(self._instance, for_s)


class Strike:
    """One fault: waits for its time, strikes, and puts into the run's events whether it did."""

    def __init__(self, fault: Kill | Stall, victim: Victim, loop: Loop, recorder: Recorder) -> None:
        self.fault, self.victim = fault, victim
        self._loop, self._recorder = loop, recorder
        self._since_s: float | None = None  # None: it has not struck yet
        self._why_not = "the run ended before"
        self._told = False

    async def run(self) -> None:
        await self._time()
        alive = await self.victim.lives(self._loop)
        self._since_s = self._loop.now
        if not alive:
            self._why_not = "it was dead before"
            self._tell(struck=False)
        elif isinstance(self.fault, Stall):
            self._why_not = "the run ended in its midst"
            struck = await self.fault.strike(self.victim, self._loop)
            self._why_not = "it was not stopped all the time"
            self._tell(struck=struck)
        else:
            self._why_not = "it was still alive when the run ended"
            self.victim.kill()  # `end` looks whether it is dead: that may end the run at once

    async def _time(self) -> None:
        after = self.fault.after_requests
        if after is None:
            await self._loop.sleep_until(self.fault.at_s or 0.0)
            return
        reached = Event(self._loop)

        def on_done(request: Request) -> None:
            if self._recorder.num_done >= after:
                reached.set()

        self._recorder.on_done.append(on_done)
        await self._loop.wait(reached)

    def end(self) -> None:
        """The run is over."""
        self.victim.release()
        if not self._told:
            killed = self._since_s is not None and not isinstance(self.fault, Stall)
            self._tell(struck=killed and not self.victim.alive)

    def _tell(self, *, struck: bool) -> None:
        self._told = True
        now_s = self._loop.now
        start_s = now_s if self._since_s is None else self._since_s
        fields: dict[str, Any] = {"fault": self.fault.key, "planned": self.fault.planned}
        fields |= {"struck": struck, "why_not": "" if struck else self._why_not}
        end_s = now_s if isinstance(self.fault, Stall) else start_s
        self._recorder.event("fault", self.victim.name, start_s, end_s, **fields)
