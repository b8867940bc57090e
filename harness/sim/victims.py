"""Simulated instances as victims of faults on purpose."""

from __future__ import annotations

from harness.clock import Event, Loop
from harness.device.victim import Victim
from harness.errors import InstanceLost
from harness.sim.compute import Compute
from harness.sim.device import SimDevice
from harness.sim.fabric import SimFabric
from harness.sim.instance import SimInstance


class _Stalled(Victim):
    """A stall takes the device's compute. The iteration under way ends first, and the next one
    begins `for_s` after it would have; copies go on."""

    def __init__(self, name: str, loop: Loop, compute: Compute) -> None:
        self.name, self._loop, self._compute = name, loop, compute

    async def stall(self, for_s: float) -> bool:
        before_s, until_s = self._compute.lent_s, self._loop.now + for_s
        await self._compute.attend(for_s)
        return self._compute.lent_s >= before_s + for_s and self._loop.now >= until_s


class SimVictim(_Stalled):
    """An instance that serves one model for good, or a device on which models take turns. Who waits
    for it is told `notice_s` after its death."""

    def __init__(self, instance: SimInstance | SimDevice, loop: Loop, notice_s: float) -> None:
        super().__init__(instance.name, loop, instance.compute)
        self._instance, self._notice_s = instance, notice_s
        self._known: Event | None = None  # of its death; None: it lives

    def expect(self) -> None:
        self._instance.may_fail, self._instance.died = True, self._died

    @property
    def alive(self) -> bool:
        return self._known is None

    def kill(self) -> None:
        if self._known is None:
            self._known = Event(self._loop)
            self._loop.spawn(self._tell(self._known), name=f"{self.name} is dead")
            if self._compute.interrupt is not None:
                self._compute.interrupt.set()

    async def _tell(self, known: Event) -> None:
        await self._loop.sleep(self._notice_s)
        known.set()
        if isinstance(self._instance, SimDevice):
            self._instance.on_lost(InstanceLost(self.name, "killed"))

    async def _died(self) -> None:
        if self._known is not None:
            await self._loop.wait(self._known)
            raise InstanceLost(self.name, "killed")


class SimElasticVictim(_Stalled):
    """An instance whose weights and KV move."""

    def __init__(self, runner: SimInstance, loop: Loop, fabric: SimFabric) -> None:
        super().__init__(runner.name, loop, runner.compute)
        self._fabric = fabric

    @property
    def alive(self) -> bool:
        return not self._fabric.is_lost(self.name)

    def kill(self) -> None:
        self._fabric.kill(self.name)
