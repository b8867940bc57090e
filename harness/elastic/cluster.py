"""The elastic instances of a cluster, and what happens between them: pipelines, KV on the move,
lent memory, copies of weights on hosts, slots that are taken and released, and deaths.

Systems drive this (`Cluster.elastic`); an engine supplies fabric, executors and instances.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from harness.cost.hardware import Hardware
from harness.device.location import dram, members
from harness.elastic.device_layout import DeviceLayout
from harness.elastic.fabric import Memory, Sending
from harness.elastic.host_copies import HostCopies
from harness.elastic.instance import ElasticInstance
from harness.elastic.kv_directory import Holder
from harness.elastic.kv_moves import KvMover, KvRoute
from harness.elastic.kv_region import KvStore
from harness.elastic.layerwise import LayerPass, LayerwiseBatch, LayerwiseExecutor
from harness.elastic.page_tables import KvCopy
from harness.elastic.pipeline import Pipeline, PipelineExecutor, Stage, check_stages
from harness.elastic.shared import Shared
from harness.errors import InstanceLost, RunError, UsageError
from harness.model_spec import ModelSpec
from harness.request import Batch, Request

LostPolicy = Callable[[ElasticInstance], None]
KV = Sending("kv")


class Executors(Protocol):
    """An engine's executors of batches that several instances run."""

    def pipeline(self, stages: Sequence[Stage]) -> PipelineExecutor: ...

    def layerwise(self) -> LayerwiseExecutor: ...


@dataclass(slots=True, eq=False)
class Lent:
    """A lease of KV memory, of one store or several. `at`: its bytes on each of the lender's
    devices."""

    lender: ElasticInstance
    at: range
    since_s: float


class ElasticCluster:
    """The instances of a run, with their slots and KV. `on_lost`: called once for an instance that
    has died; None: its death ends the run. `on_host_lost`: called for a node that has failed,
    before its instances' deaths are known."""

    def __init__(
        self, instances: Sequence[ElasticInstance], executors: Executors, shared: Shared,
        models: Mapping[str, ModelSpec], hardware: Hardware,
    ) -> None:  # fmt: skip
        self.instances = list(instances)
        self.hosts = {
            node: HostCopies(node, hardware.host_memory_bytes, models, shared)
            for node in range(hardware.num_nodes)
        }
        self.directory = shared.directory
        self.hardware = hardware  # its nodes, links and rates, for plans
        self.on_lost: LostPolicy | None = None
        self.on_host_lost: Callable[[int], None] | None = None
        self._executors, self._shared = executors, shared
        self._loop, self._fabric = shared.loop, shared.fabric
        self._mover = KvMover(shared)
        # Held slots: the role, since when, and how long batches had occupied the instance by then.
        self._roles: dict[ElasticInstance, tuple[str, float, float]] = {}
        self._leases: dict[KvStore, Lent] = {}
        self._fabric.on_lost, self._fabric.on_host_lost = self._lost, self._host_lost

    @property
    def paced(self) -> bool:
        """Whether the links are as slow as the hardware profile's, and so can be stalled."""
        return self._fabric.paced

    async def stall_links(self, instance: ElasticInstance, for_s: float) -> bool:
        """Has the links of the instance's devices carry nothing for `for_s`. False: they did."""
        devices = members(instance.memory.place)
        every = [place for one in self.instances for place in members(one.memory.place)]
        others = [*(place for place in every if place not in devices), *map(dram, self.hosts)]
        return await self._fabric.stall_links(devices, others, for_s)

    # Slots: GPU-seconds are the integral of those held

    def take(self, instance: ElasticInstance, role: str) -> None:
        """Holds the slot for `role` from now on; one that is held changes its role."""
        instance.check_alive()
        self._end_role(instance)
        self._roles[instance] = role, self._loop.now, instance.occupied_s

    def release(self, instance: ElasticInstance) -> None:
        """Gives the slot back. RunError where something of a request is still on it."""
        if instance.kv.held and instance.lost is None:
            raise RunError(
                f"{instance.name} is released with KV of {len(instance.kv.held)} requests"
            )
        self._end_role(instance)

    def role(self, instance: ElasticInstance) -> str | None:
        """What the slot is held for; None: it is free."""
        return self._roles[instance][0] if instance in self._roles else None

    def _end_role(self, instance: ElasticInstance) -> None:
        if instance in self._roles:
            role, since_s, before_s = self._roles.pop(instance)
            self._shared.record(
                "slot", instance.name, since_s, role=role, num_devices=instance.model.tp,
                occupied_s=instance.occupied_s - before_s,
            )  # fmt: skip

    def end(self) -> None:
        """The run is over: slots and leases are held until now."""
        for instance in list(self._roles):
            self._end_role(instance)
        for lent in dict.fromkeys(self._leases.values()):
            self._end_lease(lent)
        self._leases.clear()

    def note(self, kind: str, name: str, start_s: float, **fields: object) -> None:
        """Puts into the run's events what a system did or saw from `start_s` to now: what no
        device knows, like the demand for KV. `name`: whose it is."""
        self._shared.record(kind, name, start_s, **fields)

    # Layers and KV across instances

    def pipeline(self, stages: Sequence[Stage]) -> Pipeline:
        """`stages`, in order, as one instance. UsageError for a gap, an overlap or a stranger."""
        for instance, _ in stages:
            if instance not in self.instances:
                raise UsageError(f"{instance.name} is not of this cluster")
        check_stages(stages)
        return Pipeline(stages, self._executors.pipeline(stages), self._shared)

    def layerwise(self, requests: Sequence[Request]) -> LayerwiseBatch:
        """Prompts that nothing is computed of, to run through the layers a few at a time."""
        batch = Batch(chunks=[(request, request.known_tokens) for request in requests])
        return LayerwiseBatch(batch, self._executors.layerwise(), self._shared)

    def layer_pass(self, batch: Batch, instance: ElasticInstance) -> LayerPass:
        """An iteration of `batch` on `instance`, to run a few layers at a time."""
        return LayerPass(batch, instance, self._executors.layerwise(), self._shared)

    async def copy_kv(
        self, copies: Sequence[KvCopy], layers: range, source: Holder, target: Holder,
        sending: Sending, *, moved: Sequence[Request] = (),
    ) -> None:  # fmt: skip
        """Makes `copies` of the KV of `layers`, for which both ends have room, as one message: who
        holds what stays as it is. `moved`: of which requests it counts as a move. InstanceLost
        where an end dies."""
        start_s, route = self._loop.now, KvRoute(source, target, source.layout.groups(layers))
        await self._mover.copy(copies, route, sending)
        num_bytes, purpose = route.num_bytes(copies), sending.purpose
        if moved:
            self._mover.record(moved, route, start_s, purpose, num_bytes)
        else:
            self._shared.transferred(source.memory, target.memory.name, purpose, start_s, num_bytes)

    def move_kv(
        self, requests: Sequence[Request], layers: range, source: Holder, target: Holder,
        sending: Sending = KV, *, owner: str = "",
    ) -> Coroutine[Any, Any, bool]:  # fmt: skip
        """Moves the KV of `layers` (whole pages) of `requests` from `source`, which holds it, to
        `target`; requests may go on decoding meanwhile. See `KvMover.move`."""
        route = KvRoute(source, target, source.layout.groups(layers))
        return self._mover.move(requests, route, sending, owner)

    async def stage(self, memory: Memory, num_bytes: int, purpose: str) -> None:
        """Passes KV that is gathered or scattered through a staging tensor on its device: every
        byte is read and written once. Nothing where the engine's copies do so themselves."""
        if self._fabric.places_matter:
            return
        start_s = self._loop.now
        await self._fabric.copy(memory, memory, num_bytes, list, Sending(purpose))
        self._shared.transferred(memory, memory.name, purpose, start_s, num_bytes)

    # Memory outside of the instances that use it

    async def lend(self, lender: ElasticInstance, num_bytes: int, model: DeviceLayout) -> KvStore:
        """Lends `num_bytes` (of each device) of the lender's KV memory, for KV of another instance
        with the layout `model`. RunError where it has not so much that is free. A borrower of fewer
        devices than the lender uses the memory of as many of them, the first ones."""
        (store,) = await self.lend_parts(lender, num_bytes, [(range(model.spec.tp), model)])
        return store

    async def lend_parts(
        self, lender: ElasticInstance, num_bytes: int, parts: Sequence[tuple[range, DeviceLayout]]
    ) -> list[KvStore]:
        """Lends as `lend` does, to a borrower for each of `parts`: those of the lender's devices,
        counted from 0, whose bytes it has, and its layout. A page is on all devices of a group, so
        the bytes are KV memory again once all borrowers have given theirs back."""
        pages = -(-num_bytes // lender.page_bytes)
        at = await lender.lend(pages)
        name, stores = f"lent by {lender.name} at {at.start}", []
        for devices, model in parts:
            own = name if len(parts) == 1 else f"{name} of device {devices.start}"
            memory = lender.memory.part(devices)
            stores.append(KvStore(own, memory, at, model, self._fabric))
        lent = Lent(lender, at, self._loop.now)
        self._leases.update(dict.fromkeys(stores, lent))
        return stores

    def beside(self, stores: Sequence[KvStore], layout: DeviceLayout) -> KvStore:
        """Stores of several lenders as one for a tensor-parallel group of this `layout`: device by
        device in their order, as large as the smallest. Only where places do not matter."""
        if self._fabric.places_matter:
            raise RunError("several lenders of one consumer are simulated alone")
        parts = tuple(store.memory for store in stores)
        place = tuple(device for part in parts for device in members(part.place))
        memory = Memory("+".join(part.name for part in parts), place, parts)
        size = min(store.kv.num_pages * store.page_bytes for store in stores)
        name = ", ".join(store.name for store in stores)
        return KvStore(name, memory, range(size), layout, self._fabric)

    def reclaim(self, store: KvStore) -> None:
        """Gives a lease back to its lender. RunError where KV is still in it."""
        if store.kv.held:
            raise RunError(f"{store.name} is reclaimed with KV of {len(store.kv.held)} requests")
        lent = self._leases.pop(store)
        if lent in self._leases.values():
            return
        self._end_lease(lent)
        if lent.lender.lost is None:
            lent.lender.take_home(lent.at)

    def _end_lease(self, lent: Lent) -> None:
        self._shared.record("lease", lent.lender.name, lent.since_s, bytes=len(lent.at))

    def dram_store(
        self, node: int, num_bytes: int, model: DeviceLayout, *, at_bytes: int = 0
    ) -> KvStore:
        """A store for KV of instances with the layout `model` in a node's DRAM (of each device's
        part), from `at_bytes` on: stores of one node must not overlap."""
        if node not in self.hosts:
            raise UsageError(f"node {node} is not of this cluster; valid: {sorted(self.hosts)}")
        memory = Memory(dram(node).file("kv"), dram(node))
        at = range(at_bytes, at_bytes + num_bytes)
        return KvStore(f"DRAM of node {node}", memory, at, model, self._fabric)

    # Death

    def kill(self, instance: ElasticInstance) -> None:
        """Fault injection: `instance` dies now, as by SIGKILL."""
        self._fabric.kill(instance.name)

    def kill_host(self, node: int) -> None:
        """Fault injection: a node fails now, with its instances and the copies in its DRAM.
        RunError where the system knows of no hosts that fail."""
        if self.on_host_lost is None:
            raise RunError(f"host {node} fails, and this system is not made for that")
        if self.hosts[node].lost:
            return
        for instance in self.instances:
            if instance.memory.node == node:
                self.kill(instance)
        self._host_lost(node)

    def _host_lost(self, node: int) -> None:
        self.hosts[node].fail()
        self._shared.record("host_lost", f"node-{node}", self._loop.now)
        if self.on_host_lost is not None:
            self.on_host_lost(node)

    def _lost(self, name: str, reason: str) -> None:
        """The engine says that an instance has died."""
        instance = next(each for each in self.instances if each.name == name)
        if instance.lost is not None:
            return
        instance.lose(InstanceLost(name, reason))
        self._shared.record("lost", instance.name, self._loop.now)
        self._end_role(instance)
        if self.on_lost is None:
            raise InstanceLost(name, reason)
        self.on_lost(instance)
