"""A consumer and its lender (section 5): who of both gets which request, and what deaths leave.
The lender may be that of other pairs, too (`group.py`).

Of every `lender.every` requests of the consumer's model one is the lender's where it has that
model; the rest are the consumer's. A lender with a model of its own has the requests that name it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.clock import Loop
from harness.elastic.cluster import ElasticCluster
from harness.elastic.instance import ElasticInstance
from harness.elastic.kv_store import KvStore
from harness.request import Request
from systems.aqua.cached_prefixes import CachedPrefixes
from systems.aqua.config import AquaConfig
from systems.aqua.consumer import Consumer
from systems.aqua.kept_copies import KeptCopies
from systems.aqua.leases import Leases
from systems.aqua.lender import Lender
from systems.aqua.prompt import Limits
from systems.aqua.streaming import Streamer
from systems.aqua.swap_space import SwapSpace
from systems.aqua.turn import Turn

Server = Consumer | Streamer | Lender
Drop = Callable[[Request, str], None]


class Pair:
    """`place`: the lender's devices that lend to this consumer, at the coordinator. `leases`: None:
    there is DRAM alone. `dram`: the consumer's part of it. `model_of`: a
    request's model by its own name. `drop`: gives a request up, for a reason. `orphan`: called with
    a request that no instance left here has the model of."""

    def __init__(
        self, config: AquaConfig, elastic: ElasticCluster, consumer: ElasticInstance,
        lender: Lender, place: str, leases: Leases | None, dram: KvStore, loop: Loop,
        model_of: Callable[[Request], str], drop: Drop, orphan: Callable[[Request], None],
    ) -> None:  # fmt: skip
        self._config, self._elastic, self._loop = config, elastic, loop
        self._place, self._leases, self._dram = place, leases, dram
        self._model_of, self._drop, self._orphan = model_of, drop, orphan
        self.consumer = self._make_consumer(consumer)
        self.lender = lender
        self._num_submitted = 0
        self._lender_blocks = lender.instance.kv.num_blocks
        # Of the longest request that both can serve, before any is lent.
        self._blocks = self._kv_blocks(consumer)
        if isinstance(self.consumer, Streamer):
            self._blocks = self.consumer.num_blocks
        elif lender.instance.model.name == consumer.model.name:
            self._blocks = min(self._blocks, lender.instance.kv.num_blocks)

    def _make_consumer(self, instance: ElasticInstance) -> Consumer | Streamer:
        config, layout = self._config, instance.layout
        dram = self._dram
        if config.consumer.streams:
            return Streamer(
                self._elastic, instance, self._leases, dram, config.informer_config(),
                self._loop, self._consumer_died, overlap=config.consumer.overlap,
            )  # fmt: skip
        variant = config.variants[config.variant]
        limits = Limits(
            batch_tokens=config.scheduler.batch_tokens,
            slice_iterations=variant.scheduler.slice_iterations,
            num_blocks=self._kv_blocks(instance),
            block_tokens=instance.kv.block_tokens,
            max_prompts=config.max_num_seqs,
        )
        unused = instance.kv.num_blocks - limits.num_blocks
        instance.kv.reserve(unused * len(instance.kv.all_groups), "not the consumer's")
        by_block = layout.page_bytes // (2 * layout.page_layers)
        space = KeptCopies if variant.scheduler.dirty_only else SwapSpace
        swap = space(
            self._elastic, instance, self._leases, dram, variant.migration,
            chunk_bytes=by_block if config.copies == "by_block" else None,
            issue_s=config.copy_issue_s,
        )  # fmt: skip
        return Consumer(
            instance, Turn(limits, config.variant == "artifact"), swap,
            variant.scheduler.fcfs_when_in_dram, config.informer_config(), self._loop,
            self._consumer_died, overlap_paging=config.consumer.overlap_paging,
            prefixes=CachedPrefixes(swap, instance) if config.consumer.prefill_caching else None,
        )  # fmt: skip

    def _kv_blocks(self, consumer: ElasticInstance) -> int:
        return max(1, int(self._config.consumer.kv_share * consumer.kv.num_blocks))

    # Serving

    @property
    def instances(self) -> tuple[ElasticInstance, ElasticInstance]:
        return self.consumer.instance, self.lender.instance

    def serves(self, model: str) -> bool:
        """Whether an instance that is left has it, by its own name."""
        return any(each.lost is None and each.model.name == model for each in self.instances)

    def submit(self, request: Request) -> None:
        longest = request.prompt_tokens + request.output_tokens - 1
        lends = self._model_of(request) != self.consumer.instance.model.name
        blocks = self._lender_blocks if lends else self._blocks
        room = blocks * self.consumer.instance.kv.block_tokens
        if longest > room:
            self._drop(request, f"needs KV for {longest} tokens; a device has room for {room}")
            return
        every = self._config.lender.every
        if lends:
            self._send([request], self.lender, self.lender)
            return
        self._num_submitted += 1
        if every is not None and self._num_submitted % every == 0 and self._lender_takes(request):
            self._send([request], self.lender, self.consumer)
        else:
            self._send([request], self.consumer, self.lender)

    def _lender_takes(self, request: Request) -> bool:
        """Where it has the request's model: longer ones can stream."""
        longest = request.prompt_tokens + request.output_tokens - 1
        return longest <= self._lender_blocks * self.consumer.instance.kv.block_tokens

    # Deaths

    def lost(self, instance: ElasticInstance) -> None:
        """The dead lender's leases are gone at once: nothing more is to be paged to them."""
        if instance is self.lender.instance and self._leases is not None:
            for lease in self.lender.leases_of(self._place):
                self.consumer.lose_lease(lease)
            self._leave(self._leases, self._place)
        self.consumer.wake.set()
        self.lender.wake.set()

    def take_over(self, left: Sequence[Request]) -> None:
        """What the dead lender was to serve."""
        self._send(left, self.consumer, self.consumer)

    def _leave(self, leases: Leases, holder: str) -> None:
        self._loop.spawn(leases.leave(holder), name=f"{holder} has left")

    def _consumer_died(self, left: Sequence[Request]) -> None:
        if self._leases is not None:
            self._leave(self._leases, self.consumer.instance.name)
            self.lender.lose_borrower(self._place)
        self._send(left, self.lender, self.lender)

    def _send(self, requests: Sequence[Request], to: Server, other: Server) -> None:
        """To one that lives and has its model; where neither does, to other pairs."""
        alive = [each for each in (to, other) if each.instance.lost is None]
        for request in requests:
            model = self._model_of(request)
            server = next((each for each in alive if each.instance.model.name == model), None)
            if server is None:
                self._orphan(request)
            elif server is self.lender and not self._lender_takes(request):
                self._drop(request, "is too long for the instance that is left")
            else:
                server.submit(request)
