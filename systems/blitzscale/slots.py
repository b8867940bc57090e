"""The slots of a cluster: what each instance serves now, and what it holds."""

from __future__ import annotations

from collections.abc import Sequence

from harness.clock import Event, Loop
from harness.elastic.instance import ElasticInstance
from harness.request import Request
from systems.blitzscale.pool import GpuCopy
from systems.blitzscale.role import Role
from systems.blitzscale.shutdown import Member, State


class Slot:
    """An instance that one model may have on some GPUs. Slots of other models have the same GPUs.

    model: its name in the pool. `state` is None while the slot is not used. `wake` is set when
    something that the slot waits for may have happened.
    """

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
        self.batch: tuple[float, int] | None = None  # its prefill batch: (begin, tokens)
        self.paired = False  # a live pair gives it its batches
        self.readers = 0  # loads that read its weights
        self.dropping = False  # its weights are being given up
        self.gone = False  # it has died
        self.host_lost = False  # known before its own death: nothing can be loaded there
        self.wake = Event(loop)
        self.pair: Event | None = None  # of its live pair; set together with `wake`

    def rouse(self) -> None:
        """Wakes the slot and its live pair: what they wait for may have happened."""
        self.wake.set()
        if self.pair is not None:
            self.pair.set()

    @property
    def held(self) -> bool:
        """Whether this model uses the memory of its GPUs."""
        return not self.gone and (self.state is not None or self.dropping)

    @property
    def tokens(self) -> int:
        """Tokens of KV memory that is in use or reserved."""
        kv = self.instance.kv
        return -(-(kv.num_pages - kv.free_pages) // len(kv.all_groups)) * kv.block_tokens

    def is_at(self, role: Role, *states: State) -> bool:
        """Whether it is alive, does the work of `role`, and is in one of `states`."""
        return not self.gone and self.role.does(role) and self.state in states

    def turn(self, state: State | None, now_s: float) -> None:
        """Changes its state."""
        self.state, self.since_s = state, now_s
        self.rouse()

    def copy(self) -> GpuCopy:
        """Its copy of the parameters, for the pool."""
        return GpuCopy(name=self.name, node=self.node, devices=self.devices)


class Fleet:
    """The slots of one model. `others`: fleets of models that share the GPUs."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = list(slots)
        self.others: list[Fleet] = []
        self._by_name = {slot.name: slot for slot in slots}
        self._by_device = {device: slot for slot in slots for device in slot.devices}

    def named(self, name: str) -> Slot:
        """By the instance's name."""
        return self._by_name[name]

    def at_device(self, device: int) -> Slot:
        """By one of its GPUs."""
        return self._by_device[device]

    def of(self, role: Role, *states: State) -> list[Slot]:
        """Slots that are alive, do the work of `role` and are in one of `states`."""
        return [slot for slot in self.slots if slot.is_at(role, *states)]

    def count(self, role: Role) -> int:
        """Instances that serve as `role`, or load to do so."""
        return len(self.of(role, State.SERVING, State.LOADING))

    def free(self) -> list[Slot]:
        """Slots on GPUs that no model uses."""
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
        """Marks the slots on host `node`."""
        for slot in self.slots:
            slot.host_lost = slot.host_lost or slot.node == node

    def members(self) -> list[Member]:
        """The slots in use, for the decisions of `shutdown`."""
        return [
            Member(
                name=slot.name, role=slot.role, state=slot.state, since_s=slot.since_s,
                tokens=slot.tokens,
            )
            for slot in self.slots
            if slot.state is not None and not slot.gone
        ]  # fmt: skip

    def wake(self, role: Role) -> None:
        """Wakes all slots that do the work of `role`."""
        for slot in self.slots:
            if slot.role.does(role):
                slot.rouse()
