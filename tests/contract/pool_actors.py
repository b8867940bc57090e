"""Requests of a pool of instances that are served and moved at random."""

from __future__ import annotations

from harness.clock import Event
from harness.pooled.slab import block_offsets
from harness.request import Request
from tests.accounts import audit
from tests.contract.pool_bench import PoolBench

MODELS = ("narrow", "same", "wide", "deep")


class Actors:
    """Five requests, of which at most 15 of the host's 12 slabs are wanted, in random hands."""

    def __init__(self, bench: PoolBench, models: list[str], prompts: list[int]) -> None:
        self.bench = bench
        self.requests = [bench.request(*row, 6) for row in zip(models, prompts, strict=True)]
        self.at: dict[Request, int | str] = {}  # the instance that has it, or "host"
        self.arrived: dict[Request, Event] = {}  # from its latest swap-in

    def options(self) -> list[tuple[str, Request, int]]:
        """What could be done now: (operation, request, number of the instance)."""
        found: list[tuple[str, Request, int]] = []
        for request in self.requests:
            at = self.at.get(request)
            if at == "host":
                found += [("in", request, 0), ("in", request, 1)]
            elif isinstance(at, int) and self.bench.pool[at].holds(request):
                found += [("decode", request, at), ("out", request, at)]
            elif at is None and not request.computed_tokens:
                found += [("prefill", request, 0), ("prefill", request, 1)]
        return found

    async def act(self, operation: str, request: Request, number: int) -> None:
        """Nothing happens where there is no room."""
        one = self.bench.pool[number]
        kv = one.kv(request.model)
        if operation == "prefill" and kv.grow(request, request.prompt_tokens):
            await self.bench.prefill(one, request)
            self.at[request] = number
        elif operation == "decode" and kv.grow(request, request.computed_tokens + 1):
            await self.bench.decode(one, request, until=0.0)
            if request.finished:
                del self.at[request]
        elif operation == "out":
            one.swap_out(request, lambda: None)
            self.at[request] = "host"
        elif operation == "in" and (arrived := one.swap_in(request, lambda: None)):
            self.at[request] = number
            self.arrived[request] = arrived

    def check(self) -> None:
        """Each request's KV is in one place, and its blocks are nobody else's."""
        for number, one in enumerate(self.bench.pool):
            used: list[int] = []
            for kv in {id(kv): kv for kv in (one.kv(model) for model in MODELS)}.values():
                audit(kv)
                for runs in kv.runs.values():
                    used += block_offsets(runs, kv.shape.block_bytes)
            assert len(used) == len(set(used))
            held = {request for request in self.requests if self.at.get(request) == number}
            found = {r for r in self.requests if r.request_id in one.kv(r.model).held}
            assert held == found

    async def leave(self) -> None:
        """Every request comes home from the host and is given up."""
        bench = self.bench
        for request in [r for r, at in self.at.items() if at == "host"]:
            room = [one.kv(request.model).free_blocks for one in bench.pool]
            await self.act("in", request, room.index(max(room)))
        for request, number in self.at.items():
            assert isinstance(number, int), "it had no room"
            if request in self.arrived:
                await bench.loop.wait(self.arrived[request])
            bench.pool[number].evict(request)
