"""ADBS's loop: runs the models of one mesh side by side (MuxServe §3.4).

Prefills come first, one at a time, models in turn. Decodes of other models run beside them. The
shares of running jobs may exceed the multiprocessors by the configured excess and no more. If more
jobs are ready than fit, decode jobs end at their next step and take turns.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.clock import Event, Loop
from harness.errors import InstanceLost
from harness.request import Batch, Request
from systems.muxserve.adbs import QuotaConfig, adapt, in_turn
from systems.muxserve.resident import Resident

ROUNDING = 1e-9  # shares such as 0.3 have no exact float


class Mesh:
    """The loop of one mesh."""

    def __init__(
        self, loop: Loop, drop: Callable[[Request, str], None], *, prefill_share: float,
        total_share: float, quotas: QuotaConfig,
    ) -> None:  # fmt: skip
        """prefill_share, total_share: of the multiprocessors; total_share includes the excess.
        drop: takes each request that fails, and why."""
        self.residents: list[Resident] = []
        self._loop, self._drop = loop, drop
        self._prefill_share, self._total_share = prefill_share, total_share
        self._quotas = quotas
        self._prefilling: Resident | None = None
        self._last_prefill = self._last_decode = -1
        self._spare_bytes = 0
        self._wake = Event(loop)

    def submit(self, resident: Resident, request: Request) -> None:
        """Queues the request: the resident's decode job ends, to prefill it."""
        if resident.lost is not None:
            self._drop(request, resident.lost)
            return
        resident.waiting.append(request)
        resident.stop.set()
        self._wake.set()

    async def serve(self) -> None:
        self._loop.spawn(self._adapt_quotas(), name="quotas")
        while True:
            self._wake.clear()
            self._move_quotas()
            crowded = self._start_prefill() | self._start_decodes()
            if crowded:
                for resident in self.residents:
                    resident.stop.set()
            await self._loop.wait(self._wake)

    def _start_prefill(self) -> bool:
        """Starts the next prefill if it can. Whether a prefill waits: for multiprocessors, or for
        the end of its model's decode job."""
        if self._prefilling is not None:
            return False
        residents = self.residents
        turn = in_turn(len(residents), self._last_prefill, lambda i: residents[i].admissible)
        if turn is None:
            return False
        resident = residents[turn]
        if not resident.idle or not self._free(self._prefill_share):
            return True
        self._last_prefill, self._prefilling = turn, resident
        self._start(resident, resident.prefill(), self._prefill_share)
        return False

    def _start_decodes(self) -> bool:
        """Starts every decode that can start. Whether a decode waits for multiprocessors."""
        residents = self.residents
        while True:
            turn = in_turn(
                len(residents),
                self._last_decode,
                lambda i: residents[i].idle and bool(residents[i].running),
            )
            if turn is None:
                return False
            resident = residents[turn]
            if not self._free(resident.decode_share):
                return True
            self._last_decode = turn
            batch = resident.decode()
            if batch.decodes or batch.chunks:
                self._start(resident, batch, resident.decode_share)
            else:  # all of it was preempted, and waits for a prefill
                self._wake.set()

    def _free(self, share: float) -> bool:
        used = sum(resident.job_share for resident in self.residents)
        return used + share <= self._total_share + ROUNDING

    def _start(self, resident: Resident, batch: Batch, share: float) -> None:
        resident.job_share = share
        resident.stop.clear()
        self._loop.spawn(self._run(resident, batch), name=resident.instance.name)

    async def _run(self, resident: Resident, batch: Batch) -> None:
        try:
            await resident.instance.execute(batch, stop=resident.stop)
        except InstanceLost as error:
            for request in resident.give_up(str(error)):
                self._drop(request, str(error))
        resident.job_over()
        if batch.chunks:
            self._prefilling = None
        self._wake.set()

    async def _adapt_quotas(self) -> None:
        window_s = self._quotas.window_s
        while True:
            await self._loop.sleep(window_s)
            changes = adapt([r.quota(window_s) for r in self.residents], self._quotas)
            for resident, change in zip(self.residents, changes, strict=True):
                resident.owed_blocks, resident.wanted_blocks = max(0, -change), max(0, change)
            self._wake.set()

    def _move_quotas(self) -> None:
        for resident in self.residents:
            if resident.owed_blocks:
                self._spare_bytes += resident.give()
        for resident in self.residents:
            if resident.wanted_blocks:
                self._spare_bytes -= resident.take(self._spare_bytes)
