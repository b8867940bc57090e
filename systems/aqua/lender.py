"""A producer: a replica that serves FCFS and lends what its profile found free (section 6, 9.4).

`informer.py` decides when it offers and reclaims; the scheduler is vLLM's. What is lent is out of
the replica's KV pool until it comes home. A tensor-parallel group lends as many bytes of each of
its devices, which is a lease for each consumer that borrows of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import NamedTuple

from harness.clock import Loop
from harness.elastic.cluster import ElasticCluster
from harness.elastic.device_layout import DeviceLayout
from harness.elastic.instance import ElasticInstance
from harness.errors import InstanceLost, UsageError
from harness.request import Batch, Request
from systems.aqua import informer
from systems.aqua.config import AquaConfig, ShardLender
from systems.aqua.consumer import OnDeath
from systems.aqua.informer import Load, Looks, Offer, Reclaim
from systems.aqua.leases import Leases
from systems.aqua.profiler.profile import read_profile
from systems.serving.iteration import Limits
from systems.serving.replica import Replica


class Borrowing(NamedTuple):
    """What a consumer, or one of its shards, borrows of a lender."""

    borrower: str  # the coordinator's name of the consumer or the shard
    consumer: ElasticInstance
    place: str  # the coordinator's name of those devices of the lender
    lender: ElasticInstance
    devices: range  # those of the lender's devices, counted from 0

    @property
    def layout(self) -> DeviceLayout:
        """Layout of the KV that its leases are for."""
        return self.consumer.layout


def borrowings(
    consumers: Sequence[ElasticInstance], lenders: Sequence[ElasticInstance]
) -> list[list[Borrowing]]:
    """Who borrows of each lender. A lone consumer borrows of a whole lender, which acts as
    one device, or one shard of each of several. Of several consumers each borrows of as many of the
    lender's devices as it has itself, the first ones first."""
    if len(consumers) == 1:
        (one,) = consumers
        names = [one.name]
        if len(lenders) > 1:
            names = [f"{one.name}.{k}" for k in range(len(lenders))]
        devices = range(one.model.tp)
        ends = zip(names, lenders, strict=True)
        return [[Borrowing(name, one, each.name, each, devices)] for name, each in ends]
    (lender,) = lenders
    found, at = list[Borrowing](), 0
    for each in consumers:
        devices = range(at, at + each.model.tp)
        found.append(Borrowing(each.name, each, f"{lender.name}.{at}", lender, devices))
        at = devices.stop
    return [found]


def profiled(config: AquaConfig, lender: ElasticInstance) -> tuple[float, int]:
    """The lender's stable rate (requests/s) and the bytes of each device that are free at it."""
    own = config.lender
    if own.profile is None:
        kv_bytes = lender.kv.num_pages * lender.page_bytes
        return own.stable_rate_per_s or inf, int(own.free_share * kv_bytes)
    found = read_profile(Path(own.profile))
    if found.model != lender.model.name or found.role != "producer":
        raise UsageError(
            f"system.lender.profile={own.profile} is of {found.model}, a {found.role}; "
            f"valid: of {lender.model.name}, a producer"
        )
    return found.stable_rate_per_s or inf, found.memory_balance


@dataclass(slots=True)
class Loan:
    """Leases of the same bytes of each device, lent at one time."""

    leases: dict[str, str]  # leases by place
    asked_back: bool = False


class Lender(Replica):
    """The serving loop of a lender. `on_death`: called once with the requests that are left, of
    which nothing is computed."""

    def __init__(
        self, config: AquaConfig, cluster: ElasticCluster, instance: ElasticInstance,
        borrowers: Sequence[Borrowing], leases: Leases, loop: Loop, on_death: OnDeath,
        lends: ShardLender | None = None,
    ) -> None:  # fmt: skip
        """`lends`: what the placer's pairs say of it; None: as `config.lender` says."""
        self._config = config.informer_config()
        limits = Limits(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            enable_chunked_prefill=True,
            scheduler_reserve_full_isl=True,
        )
        n = self._config.every_iterations
        super().__init__(instance, instance.kv, loop, limits, max_steps=n)
        self._cluster, self.instance, self._leases = cluster, instance, leases
        self.borrowers = list(borrowers)  # those that are left
        self._stable_rate_per_s, self._free_bytes = profiled(config, instance)
        if lends is not None:
            self._free_bytes = lends.free_bytes
        self._on_death = on_death
        self.lent: list[Loan] = []  # loans that have not come home
        self._arrivals_s: deque[float] = deque()  # arrivals within the informer's window
        self._looks = Looks(self._config)
        leases.on_change.append(self._nudge)

    def submit(self, request: Request) -> None:
        self._arrivals_s.append(self.loop.now)
        super().submit(request)

    async def serve(self) -> None:
        """Serves requests until the instance dies."""
        try:
            await super().serve()
        except InstanceLost:
            if self.instance.lost is None:
                raise
        left = [*self.running, *self.waiting]
        for request in left:
            self.instance.evict(request)
        self._on_death(left)

    async def form(self) -> Batch:
        """Forms the next batch, before which lent memory comes home and the load is looked at."""
        self.instance.check_alive()
        for loan in [loan for loan in self.lent if loan.asked_back]:
            await self._take_home(loan)
        batch = self.schedule(self.waiting)
        idle = not batch.chunks and not batch.decodes
        lends = self._leases.coordinator is not None
        if lends and self._looks.due(self.loop.now, idle=idle):
            await self._inform(idle)
        every_s = self._config.every_s
        if every_s is not None and lends:
            self.look_s = self._looks.at_s + every_s  # an idle engine has to wake up for it
        return batch

    def executed(self, steps: int, ended: int) -> None:
        self._looks.iterations += steps

    # Lending

    def _nudge(self) -> None:
        """Wakes the lender when something of a lease has been freed."""
        if any(loan.asked_back for loan in self.lent):
            self.wake.set()

    def leases_of(self, place: str) -> list[str]:
        return [loan.leases[place] for loan in self.lent if place in loan.leases]

    def lose_borrower(self, place: str) -> None:
        """Notes that the borrower has died."""
        self.borrowers = [each for each in self.borrowers if each.place != place]
        self.wake.set()

    async def _inform(self, idle: bool) -> None:
        """Takes the informer's turn: every n iterations, and when nothing can run; or every so many
        seconds."""
        wish = informer.decide(
            self._load(idle), self._config, stable_rate_per_s=self._stable_rate_per_s,
            profiled_free_bytes=self._free_bytes,
        )  # fmt: skip
        if isinstance(wish, Offer):
            await self._offer(wish.num_bytes)
        elif isinstance(wish, Reclaim):
            for loan in [loan for loan in self.lent if not loan.asked_back]:
                loan.asked_back = True
                for place, lease in loan.leases.items():
                    await self._leases.reclaim(place, lease)

    async def _offer(self, num_bytes: int) -> None:
        borrowers = list(self.borrowers)
        layouts = [each.layout for each in borrowers]
        block_bytes = max(each.num_groups * each.page_bytes for each in layouts)
        num_bytes = num_bytes // block_bytes * block_bytes
        if num_bytes:
            parts = [(each.devices, each.layout) for each in borrowers]
            stores = await self._cluster.lend_parts(self.instance, num_bytes, parts)
            loan = Loan({})
            for borrower, store in zip(borrowers, stores, strict=True):
                lease = await self._leases.offer(borrower.place, store)
                loan.leases[borrower.place] = lease
            self.lent.append(loan)

    async def _take_home(self, loan: Loan) -> None:
        """Takes home a loan that was asked back, if all of its leases are empty: its bytes are the
        replica's again."""
        if all([await self._leases.has_ended(lease) for lease in loan.leases.values()]):
            for lease in loan.leases.values():
                self._cluster.reclaim(self._leases.stores.pop(lease))
            self.lent.remove(loan)

    def _load(self, idle: bool) -> Load:
        now, kv = self.loop.now, self.instance.kv
        while self._arrivals_s and self._arrivals_s[0] < now - self._config.rate_window_s:
            self._arrivals_s.popleft()
        lent = 0  # bytes of each device
        for loan in self.lent:
            if not loan.asked_back:  # pages are of the borrowers' sizes
                stores = [self._leases.stores[lease] for lease in loan.leases.values()]
                lent += max(store.kv.num_pages * store.page_bytes for store in stores)
        return Load(
            pending_requests=len(self.waiting),
            rate_per_s=len(self._arrivals_s) / self._config.rate_window_s,
            free_bytes=kv.free_pages * self.instance.page_bytes,
            lent_bytes=lent,
            reclaiming=any(loan.asked_back for loan in self.lent),
            stuck=not self.borrowers or (idle and bool(self.waiting)),
        )
