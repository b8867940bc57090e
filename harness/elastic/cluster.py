"""The elastic instances of a cluster, and what happens between them: pipelines, KV on the move,
lent memory, copies of weights on hosts, slots that are taken and released, and deaths.

Systems drive this (`Cluster.elastic`); an engine supplies fabric, lines and instances.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.clock import Event, Loop
from harness.cost.hardware import Hardware
from harness.device.location import Location, dram
from harness.elastic.device_layout import DeviceLayout
from harness.elastic.fabric import Fabric, Memory
from harness.elastic.host_copies import HostCopies
from harness.elastic.instance import ElasticInstance
from harness.elastic.kv_directory import Holder, KvDirectory
from harness.elastic.kv_moves import KvCopy, KvMover
from harness.elastic.kv_store import KvStore
from harness.elastic.layer_pass import LayerPass
from harness.elastic.layerwise import LayerwiseBatch, MakePieces, layerwise_batch
from harness.elastic.pipeline import Pipeline, PipelineExecutor, Stage, checked
from harness.errors import InstanceLost, RunError, UsageError
from harness.records.record import Recorder
from harness.request import Batch, Request

LostPolicy = Callable[[ElasticInstance], None]


@dataclass(slots=True, eq=False)
class Lent:
    """`at`: bytes of each of the lender's devices. `num_parts`: stores in them."""

    lender: ElasticInstance
    at: range
    since_s: float
    num_parts: int


class ElasticCluster:
    """`on_lost`: called once for an instance that has died; None: its death ends the run.
    `on_host_lost`: for a node that has failed, before its instances' deaths are known."""

    def __init__(
        self, instances: Sequence[ElasticInstance], hosts: Mapping[int, HostCopies],
        fabric: Fabric, directory: KvDirectory,
        make_line: Callable[[Sequence[Stage]], PipelineExecutor],
        make_pieces: MakePieces, loop: Loop, recorder: Recorder, hardware: Hardware,
    ) -> None:  # fmt: skip
        self.instances, self.hosts = list(instances), dict(hosts)
        self.directory = directory
        self.hardware = hardware  # its nodes, links and rates, for plans
        self.on_lost: LostPolicy | None = None
        self.on_host_lost: Callable[[int], None] | None = None
        self._fabric, self._make_line, self._make_pieces = fabric, make_line, make_pieces
        self._loop, self._recorder = loop, recorder
        self._mover = KvMover(directory, fabric, loop, recorder)
        self._roles: dict[ElasticInstance, tuple[str, float]] = {}  # held slots: role, since when
        fabric.on_lost = self._lost
        self._leases: dict[KvStore, Lent] = {}

    # Slots: GPU-seconds are the integral of those held

    def take(self, instance: ElasticInstance, role: str) -> None:
        """Holds the slot for `role` from now on; one that is held changes its role."""
        instance.check_alive()
        self._end_role(instance)
        self._roles[instance] = role, self._loop.now

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
            role, since_s = self._roles.pop(instance)
            self._recorder.event(
                "slot", instance.name, since_s, self._loop.now,
                role=role, num_devices=instance.model.tp,
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
        self._recorder.event(kind, name, start_s, self._loop.now, **fields)

    # Layers and KV across instances

    def pipeline(self, stages: Sequence[Stage]) -> Pipeline:
        """`stages`, in order, as one instance. UsageError for a gap, an overlap or a stranger."""
        for instance, _ in stages:
            if instance not in self.instances:
                raise UsageError(f"{instance.name} is not of this cluster")
        checked(stages)
        line = self._make_line(stages)
        return Pipeline(stages, line, self.directory, self._loop, self._recorder)

    def layerwise(self, requests: Sequence[Request]) -> LayerwiseBatch:
        """Prompts that nothing is computed of, to run through the layers a piece at a time."""
        return layerwise_batch(
            requests, self._make_pieces, self.directory, self._loop, self._recorder
        )

    def layer_pass(self, batch: Batch, instance: ElasticInstance) -> LayerPass:
        """An iteration of `batch` on `instance`, to run a few layers at a time."""
        return LayerPass(batch, instance, self._make_pieces(), self.directory, self._recorder)

    async def copy_kv(
        self, request: Request, blocks: range, layers: range, source: Holder, target: Holder, *,
        purpose: str, to: Request | None = None,
    ) -> None:  # fmt: skip
        """A copy of KV `blocks` of `layers`, for which both ends have room: who holds what stays as
        it is. `to`: whose KV it is at `target`; None: the same request's. InstanceLost where an end
        dies."""
        start_s = self._loop.now
        groups = source.layout.groups(layers)
        copies = [KvCopy(request, to or request, blocks)]
        num_bytes = await self._mover.copy(copies, groups, source, target, purpose=purpose)
        self._recorder.event(
            "transfer", target.memory.name, start_s, self._loop.now,
            source=source.memory.name, purpose=purpose, bytes=num_bytes, complete=True,
        )  # fmt: skip

    async def save_kv(
        self, copies: Sequence[KvCopy], layers: range, source: Holder, target: Holder, *,
        purpose: str, of: Sequence[Request], chunk_bytes: int | None = None,
        issue_s: float | None = None,
    ) -> None:  # fmt: skip
        """As `copy_kv`, of several requests in one copy, which counts as a move of the KV of the
        requests `of`."""
        start_s = self._loop.now
        groups = source.layout.groups(layers)
        num_bytes = await self._mover.copy(
            copies, groups, source, target, purpose=purpose, chunk_bytes=chunk_bytes,
            issue_s=issue_s,
        )  # fmt: skip
        self._recorder.event(
            "kv_move", source.name, start_s, self._loop.now, to=target.name, purpose=purpose,
            requests=[each.request_id for each in of], groups=list(groups), bytes=num_bytes,
        )  # fmt: skip

    async def move_kv(
        self,
        requests: Sequence[Request],
        layers: range,
        source: Holder,
        target: Holder,
        *,
        purpose: str = "kv",
        priority: int = 0,
        chunk_bytes: int | None = None,
        issue_s: float | None = None,
        owner: str = "",
        stop: Event | None = None,
    ) -> bool:
        """The KV of `layers` (whole pages) of `requests` from `source`, which holds it, to
        `target`; requests may go on decoding meanwhile. See `KvMover.move`."""
        return await self._mover.move(
            requests, source.layout.groups(layers), source, target,
            purpose=purpose, priority=priority, chunk_bytes=chunk_bytes, issue_s=issue_s,
            owner=owner, stop=stop,
        )  # fmt: skip

    async def stage(self, memory: Memory, num_bytes: int, purpose: str) -> None:
        """Passes KV that is gathered or scattered through a staging tensor on its device: every
        byte is read and written once. Nothing where the engine's copies do so themselves."""
        if self._fabric.places_matter:
            return
        start_s = self._loop.now
        await self._fabric.copy(memory, memory, num_bytes, list, purpose=purpose)
        self._recorder.event(
            "transfer", memory.name, start_s, self._loop.now,
            source=memory.name, purpose=purpose, bytes=num_bytes, complete=True,
        )  # fmt: skip

    # Memory outside of the instances that use it

    async def lend(self, lender: ElasticInstance, num_bytes: int, model: DeviceLayout) -> KvStore:
        """`num_bytes` (of each device) of the lender's KV memory, for KV of another instance with
        the layout `model`. RunError where it has not so much that is free. A borrower of fewer
        devices than the lender uses the memory of as many of them, the first ones."""
        (store,) = await self.lend_parts(lender, num_bytes, [(range(model.spec.tp), model)])
        return store

    async def lend_parts(
        self, lender: ElasticInstance, num_bytes: int, parts: Sequence[tuple[range, DeviceLayout]]
    ) -> list[KvStore]:
        """As `lend`, to a borrower for each of `parts`: those of the lender's devices, counted from
        0, whose bytes it has, and its layout. A page is on all devices of a group, so the bytes are
        KV memory again once all borrowers have given theirs back."""
        pages = -(-num_bytes // lender.page_bytes)
        at = await lender.lend(pages)
        name = f"lent by {lender.name} at {at.start}"
        names = [f"{name} of device {devices.start}" for devices, _ in parts]
        stores = [
            KvStore(
                name if len(parts) == 1 else own, part_of(lender.memory, devices), at.start,
                len(at), model, self._fabric,
            )
            for own, (devices, model) in zip(names, parts, strict=True)
        ]  # fmt: skip
        lent = Lent(lender, at, self._loop.now, len(stores))
        self._leases.update(dict.fromkeys(stores, lent))
        return stores

    def reclaim(self, store: KvStore) -> None:
        """Gives a lease back to its lender. RunError where KV is still in it."""
        if store.kv.held:
            raise RunError(f"{store.name} is reclaimed with KV of {len(store.kv.held)} requests")
        lent = self._leases.pop(store)
        lent.num_parts -= 1
        if lent.num_parts:
            return
        self._end_lease(lent)
        if lent.lender.lost is None:
            lent.lender.take_home(lent.at)

    def _end_lease(self, lent: Lent) -> None:
        self._recorder.event(
            "lease", lent.lender.name, lent.since_s, self._loop.now, bytes=len(lent.at)
        )

    def dram_store(
        self, node: int, num_bytes: int, model: DeviceLayout, *, at_bytes: int = 0
    ) -> KvStore:
        """KV of instances with the layout `model` in a node's DRAM (of each device's part), from
        `at_bytes` on: stores of one node must not overlap."""
        if node not in self.hosts:
            raise UsageError(f"node {node} is not of this cluster; valid: {sorted(self.hosts)}")
        memory = Memory(f"dram{node}:kv", dram(node))
        return KvStore(f"DRAM of node {node}", memory, at_bytes, num_bytes, model, self._fabric)

    # Death

    def kill(self, instance: ElasticInstance) -> None:
        """Fault injection: `instance` dies now, as by SIGKILL."""
        self._fabric.kill(instance.name)

    def kill_host(self, node: int) -> None:
        """Fault injection: a node fails now, with its instances and the copies in its DRAM.
        RunError where the system knows of no hosts that fail."""
        if self.on_host_lost is None:
            raise RunError(f"host {node} fails, and this system is not made for that")
        host = self.hosts[node]
        if host.lost:
            return
        for instance in self.instances:
            if node_of(instance.memory) == node:
                self.kill(instance)
        host.fail()
        now = self._loop.now
        self._recorder.event("host_lost", f"node-{node}", now, now)
        self.on_host_lost(node)

    def _lost(self, name: str, reason: str) -> None:
        """The engine says that an instance has died."""
        instance = next(each for each in self.instances if each.name == name)
        if instance.lost is not None:
            return
        instance.lose(InstanceLost(name, reason))
        now = self._loop.now
        self._recorder.event("lost", instance.name, now, now)
        self._end_role(instance)
        if self.on_lost is None:
            raise InstanceLost(name, reason)
        self.on_lost(instance)


def node_of(memory: Memory) -> int:
    """Of a device's memory, or of a group's, which is of one node."""
    place = memory.place
    return (place if isinstance(place, Location) else place[0]).node


def part_of(memory: Memory, devices: range) -> Memory:
    """`memory` on those of its devices, counted from 0; where it has no others, itself. UsageError
    for a part that begins beyond them."""
    place = memory.place
    size = 1 if isinstance(place, Location) else len(place)
    if devices.start and devices.stop > size:
        raise UsageError(
            f"devices {devices.start} to {devices.stop - 1} of {memory.name}; valid: 0 to "
            f"{size - 1}"
        )
    if isinstance(place, Location) or len(devices) >= size:
        return memory
    part = place[devices.start : devices.stop]
    return Memory(memory.name, part[0] if len(part) == 1 else part)
