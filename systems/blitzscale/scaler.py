"""Carries out a policy's decisions (§5.3, §5.4): loads, stops, mutates and releases instances."""

from __future__ import annotations

from contextlib import suppress

from harness.errors import InstanceLost
from systems.blitzscale import growth
from systems.blitzscale.config import Config, Ranges
from systems.blitzscale.growth import Changes, Counts
from systems.blitzscale.instances import Role, Slot, State
from systems.blitzscale.loads import Loads
from systems.blitzscale.parameters import DataPlane
from systems.blitzscale.planner import nearest_spares, spread_spares
from systems.blitzscale.serving import Serving


class Scaler:
    """Scales the instances of one model."""

    def __init__(
        self, config: Config, ranges: Ranges, serving: Serving, data_plane: DataPlane, loads: Loads
    ) -> None:
        self._config, self._serving, self._data_plane = config, serving, data_plane
        self._fleet, self._loop = serving.fleet, serving.fleet.loop
        self._loads = loads
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

    def scale(self, prefills: int, decodes: int, *, may_grow: bool) -> None:
        """Brings the numbers of instances to what the policy wants. may_grow: whether free GPUs may
        be taken; False if another model lacks them more."""
        prefills, decodes = self._together(prefills, decodes)
        num_prefills = self._fleet.count(self._prompts)
        num_decodes = 0 if self._config.colocation else self._fleet.count(Role.DECODE)
        if (prefills, decodes) == (num_prefills, num_decodes) and self._ahead is None:
            return  # as nearly always: `growth.changes` would find nothing
        free = len(self._fleet.free()) if may_grow else 0
        spare = free + len(self._fleet.leaving())
        if not (num_prefills or num_decodes) and spare < self._least_at_work:
            spare = 0  # two models that each have one role would wait for each other for ever
        counts = Counts(num_prefills, num_decodes, spare)
        mutation = self._config.mutation and num_prefills > 1
        prescaled = self._prescaled(counts, prefills)
        change = growth.changes(counts, prefills, decodes, prescaled, mutation=mutation)
        if change != Changes():
            self._apply(change)

    def _has_work(self) -> bool:
        """Whether a request of the model is under way."""
        in_use = self._fleet.in_use()
        return self._serving.prompts.tokens > 0 or any(slot.tokens for slot in in_use)

    def _together(self, prefills: int, decodes: int) -> tuple[int, int]:
        """A model that may have no instance has instances of both roles, or of neither once it has
        no work."""
        if self._scales_to_none and (prefills or decodes or self._has_work()):
            return max(1, prefills), max(1, decodes) if self._most_decodes else 0
        return prefills, decodes

    def _prescaled(self, counts: Counts, prefills: int) -> int:
        """How many decodes there are to be beforehand. They stay as long as the prefills for which
        they were scaled, unless prefills need their GPUs: these come first for spares, too."""
        if prefills > counts.prefills + counts.spare:
            self._ahead = None
            return 0
        if self._ahead is not None and prefills < self._ahead[0]:
            self._ahead = None
        if self._config.prescaling and counts.prefills:
            decodes = growth.prescaled_decodes(counts, prefills, self._config.significant_growth)
            if decodes > counts.decodes:
                self._ahead = prefills, min(decodes, self._most_decodes)
        return self._ahead[1] if self._ahead is not None else 0

    def _apply(self, change: Changes) -> None:
        in_use = self._fleet.in_use()
        mutated = growth.least_busy(in_use, Role.PREFILL, change.mutate)
        stops = ((self._prompts, change.stop_prefills), (Role.DECODE, change.stop_decodes))
        stopped = [(role, growth.least_busy(in_use, role, count)) for role, count in stops]
        for slot in mutated:
            self._become(slot, Role.DECODE)
        for role, slots in stopped:
            if not self._fleet.of(role, State.LOADING):
                for slot in slots:
                    slot.enter(State.SHUTTING)
        self._grow(change.load_decodes, change.load_prefills)

    def _become(self, slot: Slot, role: Role) -> None:
        slot.role = role
        self._fleet.cluster.take(slot.instance, role.value)
        slot.notify()
        self._serving.handover.dispatch()

    def _grow(self, num_decodes: int, num_prefills: int) -> None:
        """Takes draining and idle instances back first; loads new ones for the rest."""
        targets: list[Slot] = []
        for role, count in ((Role.DECODE, num_decodes), (self._prompts, num_prefills)):
            if not count:
                continue
            back = growth.revived(self._fleet.in_use(), role, count)
            for slot in back:
                if slot.role is not role:
                    self._become(slot, role)
                slot.enter(State.SERVING)
                self._serving.handover.dispatch()
            targets += self._take(role, count - len(back))
        if targets:
            self._loads.start(targets)

    def _take(self, role: Role, count: int) -> list[Slot]:
        by_devices = {slot.devices: slot for slot in self._fleet.free()}
        if self._config.spares == "near":
            sources = self._data_plane.sources(self._fleet.slots[0].model)
            picked = nearest_spares(self._fleet.fabric, sources, list(by_devices), count)
        else:
            picked = spread_spares(self._fleet.fabric, list(by_devices), count)
        slots = [by_devices[devices] for devices in picked]
        for slot in slots:
            slot.role = role
            slot.enter(State.LOADING)
            self._fleet.cluster.take(slot.instance, "loading")
        return slots

    def retire(self) -> None:
        """Releases instances that have drained."""
        leaving = self._fleet.leaving()
        if not leaving:
            return
        for slot in growth.drained(leaving):
            slot.enter(State.NULL)
        for slot in growth.released(leaving, self._loop.now, self._config.chosen.null_s):
            if self._data_plane.may_release(slot):
                self._data_plane.released(slot)
                self._fleet.cluster.release(slot.instance)
                slot.enter(None)
                self._loop.spawn(self._drop(slot), name=f"release {slot.name}")

    async def _drop(self, slot: Slot) -> None:
        """Frees the slot's memory; the slot can be taken again afterwards."""
        slot.dropping = True
        with suppress(InstanceLost):  # `on_lost` has been told
            await slot.instance.drop(range(slot.instance.model.num_layers))
        slot.dropping = False
