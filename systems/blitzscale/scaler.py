"""From load to instances (§5.3, §5.4): observes, lets the pure modules decide, and acts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

from harness.clock import Loop
from harness.elastic.cluster import ElasticCluster
from harness.errors import InstanceLost
from systems.blitzscale.config import Config
from systems.blitzscale.demand import Seen
from systems.blitzscale.fabric import Fabric
from systems.blitzscale.growth import Changes, changes, prescaled_decodes
from systems.blitzscale.growth import Fleet as Counts
from systems.blitzscale.loads import Loads
from systems.blitzscale.pairing import Pairing
from systems.blitzscale.parameters import Parameters
from systems.blitzscale.policy import Range
from systems.blitzscale.role import Role
from systems.blitzscale.serving import Serving
from systems.blitzscale.shutdown import State, drained, mutated, released, revived, stopped
from systems.blitzscale.slots import Fleet, Slot
from systems.blitzscale.spares import chosen


class Policy(Protocol):
    """Decides how many instances a load needs."""

    def wanted(self, seen: Seen) -> tuple[int, int]:
        """(prefills, decodes)."""
        ...


class Scaler:
    """Scales the instances of one model.

    look: observes the model now. pairing: is told of each plan, and looks for live pairs.
    """

    def __init__(
        self, config: Config, ranges: Mapping[Role, Range], fleet: Fleet, cluster: ElasticCluster,
        fabric: Fabric, parameters: Parameters, serving: Serving, policy: Policy, loop: Loop,
        look: Callable[[], Seen], pairing: Pairing,
    ) -> None:  # fmt: skip
        self._config, self._fleet, self._cluster, self._fabric = config, fleet, cluster, fabric
        self._parameters, self._serving, self._policy = parameters, serving, policy
        self._loop, self._look, self._pairing = loop, look, pairing
        self.loads = Loads(fleet, cluster, parameters, loop, self._loaded, pairing.planned)
        self._most_decodes = ranges[Role.DECODE].most if Role.DECODE in ranges else 0
        self._prompts = Role.COLOCATED if config.colocation else Role.PREFILL  # takes prompts
        self._scales_to_none = not any(of_role.least for of_role in ranges.values())
        self._least_at_work = len(ranges)  # an instance of each role
        self._ahead: tuple[int, int] | None = None  # (prefills, decodes scaled beforehand for them)

    @property
    def lacking(self) -> bool:
        """Whether the model has requests and a role without an instance. It is then served before
        models that only want more instances."""
        absent = not (self._fleet.count(self._prompts) and self._fleet.count(Role.DECODE))
        return absent and self._has_work()

    def step(self, *, may_grow: bool = True) -> None:
        """One look and what follows from it. may_grow: whether free GPUs may be taken; False if
        another model lacks them more."""
        self._retire()
        self._parameters.upkeep()
        seen = self._look()
        prefills, decodes = self._together(*self._policy.wanted(seen))
        free = len(self._fleet.free()) if may_grow else 0
        spare = free + self._num_revivable()
        if not (seen.prefills or seen.decodes) and spare < self._least_at_work:
            spare = 0  # two models that each have one role would wait for each other for ever
        counts = Counts(seen.prefills, seen.decodes, spare)
        mutation = self._config.mutation and seen.prefills > 1
        prescaled = self._prescaled(counts, prefills)
        self._apply(changes(counts, prefills, decodes, prescaled, mutation=mutation))
        self._pairing.look()

    def _has_work(self) -> bool:
        """Whether a request of the model is under way."""
        return self._serving.prompts.tokens > 0 or any(
            slot.tokens for slot in self._fleet.slots if slot.state is not None and not slot.gone
        )

    def _together(self, prefills: int, decodes: int) -> tuple[int, int]:
        """A model that may have no instance has instances of both roles, or of neither once it has
        no work."""
        if self._scales_to_none and (prefills or decodes or self._has_work()):
            return max(1, prefills), max(1, decodes) if self._most_decodes else 0
        return prefills, decodes

    def _prescaled(self, counts: Counts, prefills: int) -> int:
        """How many decodes there are to be beforehand. They stay as long as the prefills for which
        they were scaled."""
        if self._ahead is not None and prefills < self._ahead[0]:
            self._ahead = None
        if self._config.prescaling and counts.prefills:
            decodes = prescaled_decodes(counts, prefills, self._config.significant_growth)
            if decodes > counts.decodes:
                self._ahead = prefills, min(decodes, self._most_decodes)
        return self._ahead[1] if self._ahead is not None else 0

    def _apply(self, change: Changes) -> None:
        members = self._fleet.members()
        for name in mutated(members, change.mutate):
            self._become(self._fleet.named(name), Role.DECODE)
        for role, count in (
            (self._prompts, change.stop_prefills), (Role.DECODE, change.stop_decodes),
        ):  # fmt: skip
            if count and not self._fleet.of(role, State.LOADING):
                for name in stopped(members, role, count):
                    self._stop(self._fleet.named(name))
        self._grow(change.load_decodes, change.load_prefills)

    def _become(self, slot: Slot, role: Role) -> None:
        slot.role = role
        self._cluster.take(slot.instance, role.value)
        slot.rouse()
        self._serving.handover.dispatch()

    def _stop(self, slot: Slot) -> None:
        slot.turn(State.SHUTTING, self._loop.now)
        self._parameters.leaving(slot)

    def _num_revivable(self) -> int:
        members = self._fleet.members()
        roles = (self._prompts, Role.DECODE)
        return len({name for role in roles for name in revived(members, role, len(members))})

    def _grow(self, num_decodes: int, num_prefills: int) -> None:
        """Takes draining and idle instances back first; loads new ones for the rest."""
        targets: list[Slot] = []
        for role, count in ((Role.DECODE, num_decodes), (self._prompts, num_prefills)):
            back = revived(self._fleet.members(), role, count)
            for name in back:
                slot = self._fleet.named(name)
                self._parameters.staying(slot)
                if slot.role is not role:
                    self._become(slot, role)
                slot.turn(State.SERVING, self._loop.now)
                self._serving.handover.dispatch()
            targets += self._take(role, count - len(back))
        if targets:
            self.loads.start(targets)

    def _take(self, role: Role, count: int) -> list[Slot]:
        by_devices = {slot.devices: slot for slot in self._fleet.free()}
        near = self._parameters.sources() if self._config.spares == "near" else []
        picked = chosen(self._fabric, near, list(by_devices), count)
        for devices in picked:
            slot = by_devices[devices]
            slot.role = role
            slot.turn(State.LOADING, self._loop.now)
            self._cluster.take(slot.instance, "loading")
        return [by_devices[devices] for devices in picked]

    def _retire(self) -> None:
        now_s = self._loop.now
        for name in drained(self._fleet.members()):
            self._fleet.named(name).turn(State.NULL, now_s)
        for name in released(self._fleet.members(), now_s, self._config.chosen.null_s):
            slot = self._fleet.named(name)
            if self._parameters.may_release(slot):
                self._parameters.released(slot)
                self._cluster.release(slot.instance)
                slot.turn(None, now_s)
                self._loop.spawn(self._drop(slot), name=f"release {slot.name}")

    async def _drop(self, slot: Slot) -> None:
        """Frees the slot's memory; the slot can be taken again afterwards."""
        slot.dropping = True
        with suppress(InstanceLost):  # `on_lost` has been told
            await slot.instance.drop(range(slot.instance.model.num_layers))
        slot.dropping = False

    def _loaded(self, slot: Slot) -> None:
        self._cluster.take(slot.instance, slot.role.value)
        self._serving.begin(slot)
