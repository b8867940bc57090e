"""A consumer and its lender (section 5): who of both gets which request, and what deaths leave.
The lender may be that of other pairs, too (Fig. 11).

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
    """A consumer and its lender. `place`: the lender's devices that lend to this consumer, at the
    coordinator."""

    def __init__(
        self, config: AquaConfig, consumer: ElasticInstance, swap: SwapSpace, lender: Lender,
        place: str, outside: Outside, loop: Loop,
    ) -> None:  # fmt: skip
        self.lender, self._place, self._leases = lender, place, swap.leases
        self._every, self._outside = config.lender.every, outside
        make = Streamer if config.consumer.streams else Consumer
        self.consumer: Consumer | Streamer = make(config, consumer, swap, loop, self._consumer_died)
        self._num_submitted = 0
        # Blocks of the longest request that the lender, and that both can serve, with none lent.
        self._lender_blocks = lender.instance.kv.num_blocks
        self._blocks = self.consumer.num_blocks
        same = lender.instance.model.name == consumer.model.name
        if same and not config.consumer.streams:
            self._blocks = min(self._blocks, self._lender_blocks)

    # Serving

    @property
    def instances(self) -> tuple[ElasticInstance, ElasticInstance]:
        return self.consumer.instance, self.lender.instance

    def serves(self, model: str) -> bool:
        """Whether an instance that is left has the model, by its own name."""
        return any(each.lost is None and each.model.name == model for each in self.instances)

    def submit(self, request: Request) -> None:
        lends = self._outside.model_of(request) != self.consumer.instance.model.name
        longest = request.prompt_tokens + request.output_tokens - 1
        room = self._tokens(self._lender_blocks if lends else self._blocks)
        if longest > room:
            reason = f"needs KV for {longest} tokens; a device has room for {room}"
            self._outside.drop(request, reason)
            return
        if lends:
            self._send([request], self.lender, self.lender)
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
        return longest <= self._tokens(self._lender_blocks)

    def _tokens(self, blocks: int) -> int:
        return blocks * self.consumer.instance.kv.block_tokens

    # Deaths

    def lost(self, instance: ElasticInstance) -> None:
        """Takes notice of a death. A dead lender's leases are gone at once: nothing more is to be
        paged to them."""
        if instance is self.lender.instance:
            for lease in self.lender.leases_of(self._place):
                self.consumer.lose_lease(lease)
            self._leases.leave(self._place)
        self.consumer.wake.set()
        self.lender.wake.set()

    def take_over(self, left: Sequence[Request]) -> None:
        """Has the consumer serve what the dead lender was to serve."""
        self._send(left, self.consumer, self.consumer)

    def _consumer_died(self, left: Sequence[Request]) -> None:
        self._leases.leave(self.consumer.instance.name)
        self.lender.lose_borrower(self._place)
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
