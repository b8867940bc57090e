"""The instances of one model: what each one does, and what it holds (§2.1, Fig. 7, §5.3).

    loading -> serving -> shutting (ends its requests) -> null (idle, still has its weights) -> free

The states are the artifact's. In the paper's variant an instance is released once it has drained,
without being null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from harness.clock import Event, Loop
from harness.elastic.cluster import ElasticCluster
from harness.elastic.instance import ElasticInstance
from harness.placement import Profile
from harness.request import Request
from systems.blitzscale.fabric import fabric_of


class Role(Enum):
    """What an instance does."""

    __hash__ = object.__hash__  # of an Enum it is Python, and the monitor asks at each look

    PREFILL = "prefill"
    DECODE = "decode"
    COLOCATED = "colocated"  # both: no KV crosses the network

    def does(self, work: Role) -> bool:
        """Whether an instance of this role does the work of `work`."""
        return self is work or self is Role.COLOCATED

    @property
    def sends_kv(self) -> bool:
        """Whether its network egress is in use while it serves. It is then a source of parameters
        only if there is no other (§5.1)."""
        return self is Role.PREFILL

    @property
    def loads_live(self) -> bool:
        """Whether it can serve while its layers arrive. A decode cannot: KV would use the same
        ingress (§5.4)."""
        return self is not Role.DECODE


class State(Enum):
    """The state of an instance that has, or gets, weights."""

    __hash__ = object.__hash__

    LOADING = "loading"
    SERVING = "serving"
    SHUTTING = "shutting"
    NULL = "null"


States = tuple[State, ...]

LOADED: States = (State.SERVING, State.SHUTTING, State.NULL)  # states with all layers
AT_WORK: States = (State.SERVING, State.LOADING)
LEAVING: States = (State.SHUTTING, State.NULL)
STATES = tuple(State)


class Slot:
    """An instance that one model may have on some GPUs. Slots of other models have the same GPUs.

    model: its name in the pool. `state` is None while the slot is not used. `wake` is set when
    something that the slot waits for may have happened. `changed` is called when it has another
    role or state.
    """

    def __init__(
        self, instance: ElasticInstance, model: str, devices: tuple[int, ...], node: int, loop: Loop
    ) -> None:
        self.instance, self.model, self.devices, self.node = instance, model, devices, node
        self.name = instance.name
        self._role = Role.PREFILL
        self._state: State | None = None
        self.changed: Callable[[], None] = lambda: None  # its fleet sets it
        self.since_s = 0.0  # when it entered this state
        self.running: list[Request] = []  # decodes
        self.batch: tuple[float, int] | None = None  # its prefill batch: (begin, tokens)
        self.paired = False  # a live pair gives it its batches
        self.readers = 0  # loads that read its weights
        self.dropping = False  # its weights are being given up
        self.host_lost = False  # known before its own death: nothing can be loaded there
        self.wake = Event(loop)
        self.pair: Event | None = None  # the event of its live pair; set together with `wake`
        self._loop = loop

    @property
    def role(self) -> Role:
        return self._role

    @role.setter
    def role(self, role: Role) -> None:
        self._role = role
        self.changed()

    @property
    def state(self) -> State | None:
        return self._state

    @state.setter
    def state(self, state: State | None) -> None:
        self._state = state
        self.changed()

    @property
    def lost(self) -> bool:
        """Whether the slot's instance has died."""
        return self.instance.lost is not None

    @property
    def loaded(self) -> bool:
        """Whether it has all layers, on a host that is alive."""
        return self.state in LOADED and not (self.lost or self.host_lost)

    @property
    def sends(self) -> bool:
        """Whether its NICs send KV or parameters."""
        serves = self.state in (State.SERVING, State.SHUTTING)
        return self.readers > 0 or (serves and self.role.sends_kv)

    @property
    def held(self) -> bool:
        """Whether this model uses the memory of its GPUs."""
        return not self.lost and (self.state is not None or self.dropping)

    @property
    def tokens(self) -> int:
        """Tokens of KV memory that is in use or reserved."""
        kv = self.instance.kv
        return -(-(kv.num_pages - kv.free_pages) // len(kv.all_groups)) * kv.block_tokens

    def is_at(self, role: Role | None, *states: State) -> bool:
        """Whether it is alive, does the work of `role` (None: any), and is in one of `states`."""
        does = role is None or self._role.does(role)
        return self._state in states and does and not self.lost

    def notify(self) -> None:
        """Wakes the slot and its live pair: what they wait for may have happened."""
        self.wake.set()
        if self.pair is not None:
            self.pair.set()

    def enter(self, state: State | None) -> None:
        """Changes its state."""
        self.state, self.since_s = state, self._loop.now
        self.notify()

    def leave_pair(self) -> None:
        """Takes its batches by itself from now on."""
        self.paired = False
        self.notify()


class Fleet:
    """The slots of one model, and what they run on. `others`: fleets of models that share the
    GPUs."""

    def __init__(
        self, slots: Sequence[Slot], cluster: ElasticCluster, profile: Profile, loop: Loop
    ) -> None:
        self.slots = list(slots)
        self.cluster, self.profile, self.loop = cluster, profile, loop
        self.fabric = fabric_of(cluster.hardware)
        self.model = slots[0].instance.model
        self.others: list[Fleet] = []
        self._found: dict[tuple[Role | None, States], Sequence[Slot]] = {}
        for slot in slots:
            slot.changed = self.changed
        self._by_name = {slot.name: slot for slot in slots}
        self._by_device = {device: slot for slot in slots for device in slot.devices}

    @property
    def layers_bytes(self) -> list[float]:
        """Bytes of each layer, on all GPUs of an instance together."""
        layout = self.slots[0].instance.layout
        return [float(len(at) * self.model.tp) for at in layout.layer_at]

    def named(self, name: str) -> Slot:
        """The slot of this instance name."""
        return self._by_name[name]

    def at_device(self, device: int) -> Slot:
        """The slot of which `device` is one of the GPUs."""
        return self._by_device[device]

    def in_use(self) -> Sequence[Slot]:
        """Slots that are alive and in some state."""
        return self._at(None, STATES)

    def leaving(self) -> Sequence[Slot]:
        """Slots that end their requests, or have ended them: they could be taken back."""
        return self._at(None, LEAVING)

    def changed(self) -> None:
        """A slot has another role or state, or its instance has died: who is where is found
        anew."""
        self._found.clear()

    def of(self, role: Role | None, *states: State) -> Sequence[Slot]:
        """Slots that are alive, do the work of `role` (None: any) and are in one of `states`. They
        are found once between two changes, however often the monitor looks."""
        return self._at(role, states)

    def _at(self, role: Role | None, states: States) -> Sequence[Slot]:
        found = self._found.get((role, states))
        if found is None:
            found = tuple(slot for slot in self.slots if slot.is_at(role, *states))
            self._found[role, states] = found
        return found

    def count(self, role: Role) -> int:
        """Instances that serve as `role`, or load to do so."""
        return len(self._at(role, AT_WORK))

    def free(self) -> list[Slot]:
        """Slots on GPUs that no model uses."""
        held = [slot for fleet in self.others for slot in fleet.slots if slot.held]
        taken = {device for slot in held for device in slot.devices}
        return [
            slot
            for slot in self.slots
            if not (slot.lost or slot.host_lost or slot.held) and taken.isdisjoint(slot.devices)
        ]

    def batch_end_s(self, slot: Slot) -> float:
        """When `slot` ends the batch that it prefills alone, as profiled; now if it has none."""
        if slot.batch is None:
            return self.loop.now
        since_s, tokens = slot.batch
        return since_s + self.profile.prefill_s(self.model, tokens)

    def wake(self, role: Role) -> None:
        """Wakes all slots that do the work of `role`."""
        for slot in self._at(role, STATES):
            slot.notify()
