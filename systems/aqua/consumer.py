"""A consumer: its prompts share the device in time slices, and wait in swap space (section 7).

Who runs is decided by `turn.py`, what is paged by `paging.py`, where it goes by `swap_space.py`;
this loop puts device operations in order. Paging is between iterations, and nothing runs meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from harness.clock import Event, Loop
from harness.device.elastic import ElasticInstance
from harness.errors import InstanceLost, RunError
from harness.request import Batch, Request
from systems.aqua import fair_scheduler, informer
from systems.aqua.informer import InformerConfig
from systems.aqua.paging import falls_back, paging
from systems.aqua.prompt import Prompt, Slice
from systems.aqua.swap_space import SwapSpace
from systems.aqua.turn import Turn


class Consumer:
    """`fallback`: when FCFS takes over (`falls_back`). `control`: how often the control loop runs.
    `on_death`: called once with the requests that are left, of which nothing is computed."""

    def __init__(
        self, instance: ElasticInstance, turn: Turn, swap: SwapSpace, fallback: str,
        control: InformerConfig, loop: Loop, on_death: Callable[[Sequence[Request]], None],
    ) -> None:  # fmt: skip
        self.instance, self.swap = instance, swap
        self.wake = Event(loop)
        self._turn, self._fallback, self._control = turn, fallback, control
        self._loop, self._on_death = loop, on_death
        self._requests: dict[Hashable, Request] = {}  # by request_id, in order of arrival
        self._arrivals: dict[Hashable, int] = {}
        self._num_arrived = 0
        self._lost_leases: list[str] = []
        self._iterations, self._looked_s = 0, 0.0  # since the control loop's last turn; when

    def submit(self, request: Request) -> None:
        self._requests[request.request_id] = request
        self._arrivals[request.request_id] = self._num_arrived
        self._num_arrived += 1
        self._turn.arrived = True
        self.wake.set()

    def lose_lease(self, lease: str) -> None:
        """Its lender is dead; what lay there is given up at the next iteration boundary."""
        self._lost_leases.append(lease)
        self.wake.set()

    async def serve(self) -> None:
        """Until the instance dies."""
        try:
            while True:
                self.wake.clear()
                self.instance.check_alive()
                while self._lost_leases:
                    self.swap.lose(self._lost_leases.pop())
                if not self._requests:
                    await self._loop.wait(self.wake)
                    continue
                await self._tend()
                if self._turn.due(self._prompts()):
                    await self._page(self._choose())
                await self._iterate()
        except InstanceLost:
            if self.instance.lost is None:
                raise
        self._die()

    def _choose(self) -> Slice:
        fcfs = falls_back(self.swap.in_dram(), self._fallback)
        return self._turn.choose(self._prompts(), fcfs=fcfs)

    async def _page(self, chosen: Slice) -> None:
        """Until exactly the members of `chosen` are on the device: a lender that dies meanwhile has
        it begin anew."""
        while True:
            moves = paging(self._prompts(), chosen)
            if not moves.out and not moves.into:
                return
            await self.swap.page_out([self._requests[each] for each in moves.out])
            await self.swap.page_in([self._requests[each] for each in moves.into])

    async def _iterate(self) -> None:
        """An iteration; or as many as are left of the slice, where nobody is prefilled."""
        turn, batch = self._turn, Batch()
        prompts = {prompt.request_id: prompt for prompt in self._prompts()}
        for name, tokens in turn.batch(prompts):
            request = self._requests[name]
            if not self.instance.kv.grow(request, request.computed_tokens + tokens):
                raise RunError(f"request {name} has no room within its slice")
            if request.decoding:
                batch.decodes.append(request)
            else:
                batch.chunks.append((request, tokens))
        prefilling = [request for request, _ in batch.chunks]
        # An arrival cuts the slice short only where it can be let in at once.
        open_ = not fair_scheduler.contended(list(prompts.values()), turn.limits)
        iterations = await self.instance.execute(
            batch, max_steps=turn.iterations_left, stop=self.wake if open_ else None
        )
        done = [request for request in batch.requests if request.finished]
        for request in done:
            del self._requests[request.request_id], self._arrivals[request.request_id]
        prefilled = any(request.decoding for request in prefilling)
        turn.ran(iterations, completed=bool(done), prefilled=prefilled)
        self._iterations += iterations

    async def _tend(self) -> None:
        elapsed_s = self._loop.now - self._looked_s
        if not informer.look(self._control, iterations=self._iterations, elapsed_s=elapsed_s):
            return
        self._iterations, self._looked_s = 0, self._loop.now
        paged = [p for p in self._prompts() if not p.resident and p.computed_tokens]
        paged.sort(key=lambda p: (p.generated_tokens, p.arrival))
        await self.swap.tend([prompt.request_id for prompt in paged])

    def _prompts(self) -> list[Prompt]:
        held = self.instance.kv.held
        return [
            Prompt(
                name, self._arrivals[name], r.known_tokens, r.computed_tokens, r.generated_tokens,
                r.remaining_tokens, resident=name in held,
            )
            for name, r in self._requests.items()
        ]  # fmt: skip

    def _die(self) -> None:
        left = list(self._requests.values())
        for request in left:
            self.instance.evict(request)
            self.swap.drop(request)
        self._requests.clear()
        self._on_death(left)
