"""The slots of a cluster: what each instance serves now, and what it holds."""

from __future__ import annotations

from collections.abc import Sequence

from harness.clock import Event, Loop
from harness.device.elastic import ElasticInstance
from harness.request import Request
from systems.blitzscale.pool import GpuCopy
from systems.blitzscale.role import Role
from systems.blitzscale.shutdown import Member, State


class Slot:
    """Of a model, on GPUs that slots of other models have too. `state` None: nobody holds it.
    `wake`: set where what it waits for may have come. `model`: the pool's name of it."""

    def __init__(
        self, instance: ElasticInstance, model: str, devices: tuple[int, ...], node: int,
        loop: Loop,
    ) -> None:  # fmt: skip
        self.instance, self.model, self.devices, self.node = instance, model, devices, node
        self.name = instance.name
        self.role = Role.PREFILL
        self.state: State | None = None
        self.since_s = 0.0
        self.running: list[Request] = []  # decodes
        self.batch: tuple[float, int] | None = None  # its own prefill: since when, tokens
        self.paired = False  # its batches are those of a live pair
        self.readers = 0  # loads that read its weights
        self.dropping = False  # its weights are being given up
        self.gone = False  # it has died
        self.host_lost = False  # known before its own death is: nothing can be loaded there
        self.wake = Event(loop)
        self.pair: Event | None = None  # set with `wake`: the live pair's that it is in

    def rouse(self) -> None:
        """What it, or its live pair, waits for may have come."""
        self.wake.set()
        if self.pair is not None:
            self.pair.set()

    @property
    def held(self) -> bool:
        """Whether its GPUs' memory is this model's."""
        return not self.gone and (self.state is not None or self.dropping)

    @property
    def tokens(self) -> int:
        """That its KV memory is taken for, those to come included."""
        kv = self.instance.kv
        return -(-(kv.num_pages - kv.free_pages) // len(kv.all_groups)) * kv.block_tokens

    def is_at(self, role: Role, *states: State) -> bool:
        return not self.gone and self.role.does(role) and self.state in states

    def turn(self, state: State | None, now_s: float) -> None:
        self.state, self.since_s = state, now_s
        self.rouse()

    def copy(self) -> GpuCopy:
        return GpuCopy(name=self.name, node=self.node, devices=self.devices)


class Fleet:
    """A model's slots. `others`: the fleets of the models that share the GPUs."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = list(slots)
        self.others: list[Fleet] = []
        self._by_name = {slot.name: slot for slot in slots}
        self._by_device = {device: slot for slot in slots for device in slot.devices}

    def named(self, name: str) -> Slot:
        return self._by_name[name]

    def at_device(self, device: int) -> Slot:
        return self._by_device[device]

    def of(self, role: Role, *states: State) -> list[Slot]:
        return [slot for slot in self.slots if slot.is_at(role, *states)]

    def count(self, role: Role) -> int:
        """Instances that serve as `role`, or will."""
        return len(self.of(role, State.SERVING, State.LOADING))

    def free(self) -> list[Slot]:
        taken = {
            device
            for fleet in self.others
            for slot in fleet.slots
            if slot.held
            for device in slot.devices
        }
        return [
            slot
            for slot in self.slots
            if not (slot.gone or slot.host_lost or slot.held) and taken.isdisjoint(slot.devices)
        ]

    def host_lost(self, node: int) -> None:
        for slot in self.slots:
            slot.host_lost = slot.host_lost or slot.node == node

    def members(self) -> list[Member]:
        return [
            Member(
                name=slot.name, role=slot.role, state=slot.state, since_s=slot.since_s,
                tokens=slot.tokens,
            )
            for slot in self.slots
            if slot.state is not None and not slot.gone
        ]  # fmt: skip

    def wake(self, role: Role) -> None:
        for slot in self.slots:
            if slot.role.does(role):
                slot.rouse()
