"""A consumer and its lender (section 5): who of both gets which request, and what deaths leave.
The lender may be that of other pairs, too (Fig. 11), or the consumer's shards have a lender each
(section 9.3).

Of every `lender.every` requests of the consumer's model one is the lender's where it has that
model; the rest are the consumer's. A lender with a model of its own has the requests that name it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.clock import Loop
from harness.elastic.instance import ElasticInstance
from harness.request import Request
from systems.aqua.config import AquaConfig
from systems.aqua.consumer import Consumer
from systems.aqua.leases import Leases
from systems.aqua.lender import Lender
from systems.aqua.streaming import Streamer
from systems.aqua.swap_space import SwapSpace

Server = Consumer | Streamer | Lender


@dataclass(slots=True, frozen=True)
class Outside:
    """What the run says of requests, and takes from pairs."""

    model_of: Callable[[Request], str]  # a request's model by its own name
    drop: Callable[[Request, str], None]  # gives a request up, for a reason
    orphan: Callable[[Request], None]  # takes one that no instance left of a pair has the model of


class Pair:
    """A consumer and its lenders. `places`: of each, its devices that lend to this consumer, at the
    coordinator."""

    def __init__(
        self, config: AquaConfig, consumer: ElasticInstance, swap: SwapSpace,
        lenders: Sequence[Lender], places: Sequence[str], leases: Leases, outside: Outside,
        loop: Loop,
    ) -> None:  # fmt: skip
        self.lenders, self.lender = lenders, lenders[0]
        self._places, self._leases, self._borrowed = places, leases, swap.leases
        self._every, self._outside = config.lender.every, outside
        make = Streamer if config.consumer.streams else Consumer
        self.consumer: Consumer | Streamer = make(config, consumer, swap, loop, self._consumer_died)
        self._num_submitted = 0
        # Blocks of the longest request that each lender, and that all can serve, with none lent.
        self._lender_blocks = {lender: lender.instance.kv.num_blocks for lender in lenders}
        self._blocks = self.consumer.num_blocks
        for lender, blocks in self._lender_blocks.items():
            same = lender.instance.model.name == consumer.model.name
            if same and not config.consumer.streams:
                self._blocks = min(self._blocks, blocks)

    # Serving

    @property
    def instances(self) -> list[ElasticInstance]:
        return [self.consumer.instance, *(lender.instance for lender in self.lenders)]

    def serves(self, model: str) -> bool:
        """Whether an instance that is left has the model, by its own name."""
        return any(each.lost is None and each.model.name == model for each in self.instances)

    def submit(self, request: Request) -> None:
        model = self._outside.model_of(request)
        lends = model != self.consumer.instance.model.name
        lender = next((x for x in self.lenders if x.instance.model.name == model), self.lender)
        longest = request.prompt_tokens + request.output_tokens - 1
        room = self._tokens(self._lender_blocks[lender] if lends else self._blocks)
        if longest > room:
            reason = f"needs KV for {longest} tokens; a device has room for {room}"
            self._outside.drop(request, reason)
            return
        if lends:
            self._send([request], lender, lender)
            return
        self._num_submitted += 1
        turn = self._every is not None and self._num_submitted % self._every == 0
        if turn and self._lender_takes(request):
            self._send([request], self.lender, self.consumer)
        else:
            self._send([request], self.consumer, self.lender)

    def _lender_takes(self, request: Request) -> bool:
        """Whether the request fits on the lender, where that has its model: longer ones can
        stream."""
        longest = request.prompt_tokens + request.output_tokens - 1
        return longest <= self._tokens(self._lender_blocks[self.lender])

    def _tokens(self, blocks: int) -> int:
        return blocks * self.consumer.instance.kv.block_tokens

    # Deaths

    def lost(self, instance: ElasticInstance) -> None:
        """Takes notice of a death. A dead lender's leases are gone at once: nothing more is to be
        paged to them."""
        for lender, place in zip(self.lenders, self._places, strict=True):
            if instance is lender.instance:
                for lease in lender.leases_of(place):
                    for own in self._borrowed.of_lender(lease):
                        self.consumer.lose_lease(own)
                self._leases.leave(place)
        self.consumer.wake.set()
        for lender in self.lenders:
            lender.wake.set()

    def take_over(self, left: Sequence[Request]) -> None:
        """Has the consumer serve what the dead lender was to serve."""
        self._send(left, self.consumer, self.consumer)

    def _consumer_died(self, left: Sequence[Request]) -> None:
        self._borrowed.leave(self.consumer.instance.name)
        for lender, place in zip(self.lenders, self._places, strict=True):
            lender.lose_borrower(place)
        self._send(left, self.lender, self.lender)

    def _send(self, requests: Sequence[Request], to: Server, other: Server) -> None:
        """Sends each request to the instance that lives and has its model; where neither does, to
        other pairs."""
        alive = [each for each in (to, other) if each.instance.lost is None]
        for request in requests:
            model = self._outside.model_of(request)
            server = next((each for each in alive if each.instance.model.name == model), None)
            if server is None:
                self._outside.orphan(request)
            elif server is self.lender and not self._lender_takes(request):
                self._outside.drop(request, "is too long for the instance that is left")
            else:
                server.submit(request)
