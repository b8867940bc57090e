"""A consumer: its prompts share the device in time slices, and wait in swap space (section 7).

Who runs is decided by `turn.py`, what is paged by `paging.py`, where it goes by `swap_space.py`;
this loop puts device operations in order. Paging is between iterations, and nothing runs meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from harness.clock import Event, Loop
from harness.elastic.instance import ElasticInstance
from harness.errors import InstanceLost, RunError
from harness.request import Batch, Request
from systems.aqua.cached_prefixes import CachedPrefixes
from systems.aqua.config import AquaConfig
from systems.aqua.informer import Looks
from systems.aqua.paging import falls_back, paging
from systems.aqua.prompt import Limits, Prompt, Slice
from systems.aqua.service_order import ServiceOrder
from systems.aqua.swap_space import SwapSpace
from systems.aqua.turn import Turn

OnDeath = Callable[[Sequence[Request]], None]


class Consumer:
    """The serving loop of a consumer. `on_death`: called once with the requests that are left, of
    which nothing is computed."""

    def __init__(
        self, config: AquaConfig, instance: ElasticInstance, swap: SwapSpace, loop: Loop,
        on_death: OnDeath,
    ) -> None:  # fmt: skip
        self.instance, self.swap, self._loop, self._on_death = instance, swap, loop, on_death
        # Blocks that it uses of its KV memory: of the longest request that it serves.
        self.num_blocks = max(1, int(config.consumer.kv_share * instance.kv.num_blocks))
        unused = instance.kv.num_blocks - self.num_blocks
        instance.kv.reserve(unused * len(instance.kv.all_groups), "not the consumer's")
        limits = Limits(
            batch_tokens=config.scheduler.batch_tokens,
            slice_iterations=config.own.scheduler.slice_iterations,
            num_blocks=self.num_blocks,
            block_tokens=instance.kv.block_tokens,
            max_prompts=config.max_num_seqs,
        )
        self._order = ServiceOrder(limits)
        self._turn = Turn(limits, config.variant == "artifact")
        self._fallback = config.own.scheduler.fcfs_when_in_dram
        self._prefixes = CachedPrefixes(swap, enabled=config.consumer.prefill_caching)
        self._looks = Looks(config.informer_config())
        self.wake = Event(loop)
        self._requests: dict[Hashable, Request] = {}  # requests by request_id, in order of arrival
        self._num_arrived = 0
        self._lost_leases: list[str] = []
        swap.on_evict = self._see

    def submit(self, request: Request) -> None:
        self._requests[request.request_id] = request
        self._prefixes.expect(request)
        self._see(request)
        self._turn.arrived = True
        self.wake.set()

    def lose_lease(self, lease: str) -> None:
        """Notes that the lease's lender is dead; what lay there is given up at the next iteration
        boundary."""
        self._lost_leases.append(lease)
        self.wake.set()

    async def serve(self) -> None:
        """Serves requests until the instance dies."""
        try:
            while True:
                self.wake.clear()
                self.instance.check_alive()
                while self._lost_leases:
                    self.swap.lose(self._lost_leases.pop())
                if not self._requests:
                    await self._loop.wait(self.wake)
                    continue
                if self._looks.due(self._loop.now):
                    await self.swap.tend(self._needed)
                if self._turn.due(self._order):
                    fcfs = falls_back(self.swap.in_dram(), self._fallback)
                    await self._page(self._turn.choose(self._order, fcfs=fcfs))
                await self._iterate()
        except InstanceLost:
            if self.instance.lost is None:
                raise
        left = list(self._requests.values())
        for request in left:
            self.instance.evict(request)
        await self.swap.drop_all()
        self._requests.clear()
        self._on_death(left)

    async def _page(self, chosen: Slice) -> None:
        """Pages until exactly the members of `chosen` are on the device; if a lender dies
        meanwhile, begins anew. Without room for all that is to leave nobody is preempted: who is on
        the device goes on, and whoever that has no place for is computed again."""
        order, stay = self._order, False
        while True:
            members = set(chosen.members)
            strays = [prompt for name, prompt in order.resident.items() if name not in members]
            strays += [order.prompts[name] for name in chosen.members if name not in order.resident]
            moves = paging(strays, chosen)
            if not moves.out and not moves.into:
                return
            out = [self._requests[each] for each in moves.out]
            lacking = await self.swap.page_out(out)
            if lacking is not None:
                if stay:
                    self.swap.evict(lacking)
                else:
                    chosen, stay = self._turn.stay(order), True
                continue
            into = [self._requests[each] for each in moves.into]
            new = [request for request in into if self._prefixes.awaited_by(request)]
            await self.swap.page_in([request for request in into if request not in new])
            for request in new:
                await self._prefixes.bring(request)
            for request in out + into:
                self._see(request)

    async def _iterate(self) -> None:
        """Runs an iteration; or as many as are left of the slice, where nobody is prefilled."""
        turn, batch, kv = self._turn, Batch(), self.instance.kv
        for name, tokens in turn.batch(self._order.prompts):
            request = self._requests[name]
            # One more token needs no block where the last one held has room.
            in_last_block = request.computed_tokens % kv.block_tokens if tokens == 1 else 0
            if not in_last_block and not kv.grow(request, request.computed_tokens + tokens):
                raise RunError(f"request {name} has no room within its slice")
            if request.decoding:
                batch.decodes.append(request)
            else:
                batch.chunks.append((request, tokens))
        prefilling = [request for request, _ in batch.chunks]
        # An arrival cuts a run of decodes short only where it can be let in at once.
        stop = None if batch.chunks or self._order.contended else self.wake
        iterations = await self.instance.execute(batch, max_steps=turn.iterations_left, stop=stop)
        ran, done = batch.requests, list[Request]()
        for request in ran:
            self._see(request)
            if request.finished:
                done.append(request)
        for request in done:
            del self._requests[request.request_id]
            await self.swap.drop(request)
        prefilled = any(request.decoding for request in prefilling)
        turn.ran(iterations, completed=bool(done), prefilled=prefilled)
        for request in prefilling:
            await self._prefixes.keep(request)
        self._looks.iterations += iterations

    def _needed(self) -> list[Hashable]:
        """The prompts that are paged out, in order of need."""
        paged = [p for p in self._order.prompts.values() if not p.resident and p.computed_tokens]
        paged.sort(key=lambda p: (p.generated_tokens, p.arrival))
        return [prompt.request_id for prompt in paged]

    def _see(self, request: Request) -> None:
        """Tells the order what the request is now. Between two times it stays as it is: it is told
        of each that has arrived, run, been paged or been evicted."""
        name, order = request.request_id, self._order
        known = order.prompts.get(name)
        if request.finished:  # one that has timed out may still be among the requests
            if known is not None:
                order.remove(name)
            return
        if known is None:
            self._num_arrived += 1
            known = Prompt(name, self._num_arrived, request.known_tokens, 0, 0, 1)
        known.update(
            request.known_tokens, request.computed_tokens, request.generated_tokens,
            request.remaining_tokens, name in self.instance.kv.held, request.cached_tokens or 0,
        )  # fmt: skip
        order.put(known)
