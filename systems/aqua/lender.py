"""A producer: a replica that serves FCFS and lends what its profile found free (section 6, 9.4).

`informer.py` decides when it offers and reclaims; the scheduler is vLLM's. What is lent is out of
the replica's KV pool until it comes home. A tensor-parallel group lends as many bytes of each of
its devices, which is a lease for each consumer that borrows of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from harness.clock import Event, Loop
from harness.elastic.cluster import ElasticCluster
from harness.elastic.device_layout import DeviceLayout
from harness.elastic.instance import ElasticInstance
from harness.elastic.kv_store import KvStore
from harness.errors import InstanceLost
from harness.request import Request
from systems.aqua import informer
from systems.aqua.informer import InformerConfig, Load, Offer, Reclaim
from systems.aqua.leases import Leases
from systems.serving.iteration import Limits, schedule_iteration


class Borrower(NamedTuple):
    place: str  # at the coordinator, of those devices of the lender
    devices: range  # of the lender's, counted from 0
    layout: DeviceLayout  # of the KV that its leases are for

    @property
    def block_bytes(self) -> int:
        return self.layout.num_groups * self.layout.page_bytes


@dataclass(slots=True)
class Loan:
    """The same bytes of each device, lent at one time."""

    leases: dict[str, str]  # by place
    asked_back: bool = False


class Lender:
    """`leases`: None: it lends nothing. `on_death`: called once with the requests that are left, of
    which nothing is computed."""

    def __init__(
        self, cluster: ElasticCluster, instance: ElasticInstance, borrowers: Sequence[Borrower],
        leases: Leases | None, limits: Limits, config: InformerConfig, profiled: tuple[float, int],
        loop: Loop, on_death: Callable[[Sequence[Request]], None],
    ) -> None:  # fmt: skip
        """`profiled`: its stable rate (requests/s) and the bytes that are free at it."""
        self._cluster, self.instance = cluster, instance
        self._borrowers = list(borrowers)  # those that are left
        self._leases, self._limits, self._config = leases, limits, config
        self._stable_rate_per_s, self._free_bytes = profiled
        self._loop, self._on_death = loop, on_death
        self.wake = Event(loop)
        self.lent: list[Loan] = []  # that have not come home
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._arrivals_s: deque[float] = deque()  # within the informer's window
        self._iterations, self._looked_s = 0, 0.0  # since the informer's last turn; when

    def submit(self, request: Request) -> None:
        self._waiting.append(request)
        self._arrivals_s.append(self._loop.now)
        self.wake.set()

    async def serve(self) -> None:
        """Until the instance dies."""
        try:
            while True:
                self.wake.clear()
                self.instance.check_alive()
                await self._take_home()
                batch = schedule_iteration(
                    self._running, self._waiting, self.instance.kv, self._limits, self._preempt
                )
                idle = not batch.chunks and not batch.decodes
                await self._inform(idle)
                if idle:
                    if not self.wake.is_set:
                        await self._loop.wait(self.wake, until=self._next_look_s())
                    continue
                # An arrival can be admitted at once only if none waits before it.
                admits = not self._waiting and len(self._running) < self._limits.max_num_seqs
                self._iterations += await self.instance.execute(
                    batch, max_steps=self._config.every_iterations,
                    stop=self.wake if admits or self.wake.is_set else None,
                )  # fmt: skip
                self._running = [r for r in self._running if not r.finished]
        except InstanceLost:
            if self.instance.lost is None:
                raise
        left = [*self._running, *self._waiting]
        for request in left:
            self.instance.evict(request)
        self._on_death(left)

    # Lending

    def nudge(self) -> None:
        """Something of a lease has been freed."""
        if any(loan.asked_back for loan in self.lent):
            self.wake.set()

    def leases_of(self, place: str) -> list[str]:
        return [loan.leases[place] for loan in self.lent if place in loan.leases]

    def lose_borrower(self, place: str) -> None:
        """It has died."""
        self._borrowers = [each for each in self._borrowers if each.place != place]
        self.wake.set()

    async def _inform(self, idle: bool) -> None:
        """The informer's turn: every n iterations, and when nothing can run; or every so many
        seconds."""
        config, elapsed_s = self._config, self._loop.now - self._looked_s
        due = informer.look(config, iterations=self._iterations, elapsed_s=elapsed_s)
        if self._leases is None or not (due or (idle and config.every_s is None)):
            return
        self._iterations, self._looked_s = 0, self._loop.now
        wish = informer.decide(
            self._load(idle), config, stable_rate_per_s=self._stable_rate_per_s,
            profiled_free_bytes=self._free_bytes,
        )  # fmt: skip
        if isinstance(wish, Offer):
            await self._offer(self._leases, wish.num_bytes)
        elif isinstance(wish, Reclaim):
            for loan in [loan for loan in self.lent if not loan.asked_back]:
                loan.asked_back = True
                for place, lease in loan.leases.items():
                    await self._leases.reclaim(place, lease)

    async def _offer(self, leases: Leases, num_bytes: int) -> None:
        borrowers = list(self._borrowers)
        block_bytes = max(each.block_bytes for each in borrowers)
        num_bytes = num_bytes // block_bytes * block_bytes
        if num_bytes:
            parts = [(each.devices, each.layout) for each in borrowers]
            stores = await self._cluster.lend_parts(self.instance, num_bytes, parts)
            loan = Loan({})
            for borrower, store in zip(borrowers, stores, strict=True):
                loan.leases[borrower.place] = await leases.offer(borrower.place, store)
            self.lent.append(loan)

    def stores(self) -> list[KvStore]:
        """Of its leases; their pages are of the borrowers' sizes."""
        leases = self._leases
        if leases is None:
            return []
        return [leases.stores[name] for loan in self.lent for name in loan.leases.values()]

    async def _take_home(self) -> None:
        """Loans that were asked back, of which all leases are empty: their bytes are the replica's
        again."""
        leases = self._leases
        if leases is None:
            return
        for loan in [loan for loan in self.lent if loan.asked_back]:
            if all([await leases.has_ended(lease) for lease in loan.leases.values()]):
                for lease in loan.leases.values():
                    self._cluster.reclaim(leases.stores.pop(lease))
                self.lent.remove(loan)

    def _bytes(self, loan: Loan) -> int:
        """Of each device."""
        assert self._leases is not None, "loans are leases"
        stores = [self._leases.stores[lease] for lease in loan.leases.values()]
        return max(store.kv.num_pages * store.page_bytes for store in stores)

    def _load(self, idle: bool) -> Load:
        now, kv = self._loop.now, self.instance.kv
        while self._arrivals_s and self._arrivals_s[0] < now - self._config.rate_window_s:
            self._arrivals_s.popleft()
        size = self.instance.page_bytes
        lent = sum(self._bytes(loan) for loan in self.lent if not loan.asked_back)
        return Load(
            pending_requests=len(self._waiting),
            rate_per_s=len(self._arrivals_s) / self._config.rate_window_s,
            free_bytes=kv.free_pages * size,
            lent_bytes=lent,
            reclaiming=any(loan.asked_back for loan in self.lent),
            stuck=not self._borrowers or (idle and bool(self._waiting)),
        )

    def _next_look_s(self) -> float:
        """Where looks are by time, an idle engine that lends has to wake up for one."""
        every_s = self._config.every_s
        return inf if every_s is None or self._leases is None else self._looked_s + every_s

    def _preempt(self, request: Request) -> None:
        self.instance.evict(request)
        self.wake.set()  # nobody is admitted in an iteration that preempts: look again after it
