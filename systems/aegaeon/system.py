"""Aegaeon (SOSP'25): the parts of Fig. 5 put together.

Requests go through the proxy (§3.3) to prefill instances (Algorithm 1), then to decode instances
(Algorithm 2, §4). Instances switch models by §5. For comparison there are the schedules of Fig. 6
(a) and (b), with both phases on every instance. README.md maps sections to files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from harness.clock import Event, Loop
from harness.cluster import Cluster
from harness.configuration.checks import one_of, positive
from harness.cost.hardware import Hardware
from harness.model_spec import ModelSpec
from harness.placement import Demand, Placement, pooled
from harness.pooled.instance import PooledInstance
from harness.request import Request
from systems.aegaeon.decode import DecodeBatch, Decoder, RoundLimits, first_joinable
from systems.aegaeon.estimate import Estimator
from systems.aegaeon.fault import MortalProxy
from systems.aegaeon.partition import partitions
from systems.aegaeon.prefill import Prefiller, joinable, least
from systems.aegaeon.proxy import Proxy
from systems.aegaeon.scaling import Optimisations, Scaler
from systems.aegaeon.store import StoreConfig, open_empty_store
from systems.aegaeon.variants import Variant, check_nodes

Part = TypeVar("Part", Prefiller, Decoder)
SCHEDULES = ("disaggregated", "prefill_first", "decode_first")


class Aegaeon:
    """Raises ValueError if the pool has too few instances for the configured schedule."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        """The keys of `conf/system/aegaeon.yaml`. Raises ValueError for values that do not fit."""

        variant: str  # one of `variants`
        variants: dict[str, Variant]
        schedule: str  # disaggregated, prefill_first or decode_first
        num_prefill: int | None  # instances of the prefill partition; null: 6/16 of all
        max_group_size: int  # MAX_GPSIZE
        max_quota_s: float  # Q_MAX
        min_alpha: float
        lookahead_tokens: int  # a decode batch has room for so many more tokens of each request
        tbt_s: float | None  # d, the target TBT
        scaling: Optimisations
        store: StoreConfig

        def __post_init__(self) -> None:
            one_of(self.variant, self.variants, "variant", "choose one of")
            one_of(self.schedule, SCHEDULES, "schedule", "choose one of")
            if self.tbt_s is None:
                raise ValueError(
                    "tbt_s has no value: the SLO is relative; give system.tbt_s in seconds"
                )
            positive(self, "", "max_group_size", "max_quota_s", "min_alpha", "tbt_s")

    @staticmethod
    def place(
        config: Config, models: Mapping[str, ModelSpec], hardware: Hardware, demand: Demand
    ) -> list[Placement]:
        return pooled(models, hardware)

    def __init__(self, config: Config, *, loop: Loop, cluster: Cluster) -> None:
        self._config, self._loop, self._drop = config, loop, cluster.drop
        self._variant = config.variants[config.variant]
        self._models = list(cluster.models)
        self._estimator = Estimator(cluster.profile, cluster.models, self._variant.pcie_efficiency)
        self._unified = config.schedule != "disaggregated"
        prefill, decode = self._scalers(cluster.pool)
        pop_before_run = self._variant.pop_before_run
        self._prefillers = [
            Prefiller(
                each,
                loop,
                self._estimator,
                self._after_prefill,
                pop_before_run=pop_before_run,
                to_host=not self._unified,
            )
            for each in prefill
        ]
        self._decoders = [self._decoder(each) for each in decode]
        self._nodes = sorted({instance.node for instance in cluster.pool})
        if self._variant.pin_models_to_nodes:
            check_nodes(self._nodes, [s.instance for s in prefill], [s.instance for s in decode])
        self._prefillers_of = {
            model: self._serving(self._prefillers, model) for model in self._models
        }
        self._decoders_of = {model: self._serving(self._decoders, model) for model in self._models}
        store = config.store
        self._proxy = (
            Proxy(open_empty_store(store), self._dispatch_prefill)
            if store.restart_at_s is None
            else MortalProxy(store, loop, self._dispatch_prefill, self._instance_with)
        )
        for each in prefill:
            role = "both" if self._unified else "prefill"
            self._proxy.register(each.instance.name, role, each.instance.node)
        for each in decode if not self._unified else []:
            self._proxy.register(each.instance.name, "decode", each.instance.node)
        for instance in cluster.pool:
            instance.on_lost = partial(self._lost, instance)
            instance.on_kv_lost = partial(self._kv_lost, instance)

    def _scalers(self, pool: Sequence[PooledInstance]) -> tuple[list[Scaler], list[Scaler]]:
        """The scalers of the prefill and of the decode partition (§4.1). In a unified
        schedule (Fig. 6 (a) and (b)) every instance does both."""
        config, once = self._config, self._variant.prefetch_once
        if self._unified and config.num_prefill is not None:
            raise ValueError(
                f"system.num_prefill={config.num_prefill} is for schedule=disaggregated: "
                f"with schedule={config.schedule} every instance prefills and decodes"
            )
        phases = [pool] if self._unified else [*partitions(pool, config.num_prefill)]
        scalers = [
            [Scaler(each, self._loop, config.scaling, prefetch_once=once) for each in phase]
            for phase in phases
        ]
        return scalers[0], scalers[-1]

    def _decoder(self, scaler: Scaler) -> Decoder:
        config = self._config
        assert config.tbt_s is not None
        limits = RoundLimits(
            tbt_s=config.tbt_s,
            max_quota_s=config.max_quota_s,
            min_alpha=config.min_alpha,
            lookahead_tokens=config.lookahead_tokens,
        )
        reorder = partial(self._next_round, scaler.instance)
        return Decoder(
            scaler, self._loop, limits, self._estimator,
            reorder=reorder, done=self._finished, again=partial(self._again, scaler.instance),
        )  # fmt: skip

    def _next_round(
        self, instance: PooledInstance, batches: Sequence[DecodeBatch]
    ) -> list[DecodeBatch]:
        lookahead_tokens = self._config.lookahead_tokens
        return self._variant.next_round(batches, instance.kv, lookahead_tokens, self._models)

    def submit(self, request: Request) -> None:
        self._proxy.submit(request)

    def _finished(self, request: Request) -> None:
        self._proxy.finished(request)

    def _again(self, instance: PooledInstance, request: Request) -> None:
        """The request's KV is given up, and computed again."""
        instance.evict(request)
        self._proxy.submit_again(request)

    def _instance_with(self, request_id: int) -> str | None:
        """Asks the instances where the request is queued or running; None: at none of them."""
        parts: list[Prefiller | Decoder] = [*self._prefillers, *self._decoders]
        for part in parts:
            if any(request.request_id == request_id for request in part.held):
                return part.instance.name
        return None

    def _dispatch_prefill(self, request: Request) -> str | None:
        """Algorithm 1 on the arrival of a request; returns the name of its prefill instance. None:
        no instance is left that can prefill, or decode then, and the request has failed."""
        chosen = self._prefillers_of[request.model]
        if not chosen or not self._decoders_of[request.model]:
            phase = "decode" if chosen else "prefill"
            self._drop(request, f"no instance is left to {phase} for {request.model}")
            return None
        found = joinable(
            [p.jobs for p in chosen],
            request.model,
            self._config.max_group_size,
            accumulated=self._variant.accumulated_group_size,
        )
        if found is not None:
            prefiller, group = chosen[found[0]], found[1]
            prefiller.add(request, group)
        else:
            prefiller = chosen[least(self._loads(chosen))]
            prefiller.add(request, None)
        return prefiller.instance.name

    def _loads(self, prefillers: Sequence[Prefiller]) -> list[float]:
        if not self._unified:
            return self._variant.loads(prefillers)
        # Prefills end soon; the load must also count what there is to decode.
        decoders = [self._decoders[self._prefillers.index(each)] for each in prefillers]
        both = zip(prefillers, decoders, strict=True)
        return [len(prefiller.queue) + len(decoder.work_list) for prefiller, decoder in both]

    def _after_prefill(self, prefiller: Prefiller, request: Request) -> None:
        if request.finished:  # its first token was its last
            self._proxy.finished(request)
        elif self._unified:
            prefiller.scaler.settle(request)
            decoder = self._decoders[self._prefillers.index(prefiller)]
            decoder.add(request, decoder.joinable(request))
        else:
            prefiller.scaler.save(request)
            self._to_decode(request, prefiller.instance)

    def _to_decode(self, request: Request, origin: PooledInstance) -> None:
        """Queues a request whose KV is in host memory, or on its way there from `origin`."""
        if self._decoders_of[request.model]:
            self._proxy.moved(request, self._dispatch_decode(request))
        else:
            origin.evict(request)
            self._proxy.submit_again(request)  # which says why it fails

    def _dispatch_decode(self, request: Request) -> str:
        """Algorithm 2, line 2: as Algorithm 1; the load is the number of batches in the work list.

        Returns the name of the decode instance.
        """
        chosen = self._decoders_of[request.model]
        found = first_joinable(chosen, request)
        if found is not None:
            decoder, batch = found
            decoder.add(request, batch)
        else:
            decoder = chosen[least([len(d.work_list) for d in chosen])]
            decoder.add(request, None)
        return decoder.instance.name

    def _lost(self, instance: PooledInstance, leaving: set[int]) -> None:
        """The instance has died, and with it its KV, also of the requests `leaving`, which were to
        decode elsewhere: they are computed again. KV in the memory of a living node is not lost."""
        for model in self._models:
            self._prefillers_of[model] = alive(self._prefillers_of[model], instance)
            self._decoders_of[model] = alive(self._decoders_of[model], instance)
        self._proxy.lost(instance.name)
        dead = (each for each in self._prefillers if each.instance is instance)
        again = [request for prefiller in dead for request in prefiller.give_up()]
        for decoder in self._decoders:
            for request in decoder.held:
                if decoder.instance is not instance and request.request_id not in leaving:
                    continue
                decoder.forget(request)
                if decoder.instance.in_host_memory(request):
                    self._to_decode(request, instance)
                else:
                    decoder.instance.evict(request)
                    again.append(request)
        for request in sorted(again, key=lambda request: request.arrival_s):
            self._proxy.submit_again(request)

    def _kv_lost(self, instance: PooledInstance, request: Request) -> None:
        """The request's KV has died with a node, on its way from there: it is computed again."""
        decoder = next(each for each in self._decoders if each.instance is instance)
        decoder.forget(request)
        self._again(instance, request)

    def _serving(self, parts: Sequence[Part], model: str) -> Sequence[Part]:
        if not self._variant.pin_models_to_nodes:
            return parts
        node = self._nodes[self._models.index(model) % len(self._nodes)]
        return [part for part in parts if part.instance.node == node]

    async def serve(self) -> None:
        parts: list[Prefiller | Decoder] = [*self._decoders]
        if self._unified:
            for prefiller, decoder in zip(self._prefillers, self._decoders, strict=True):
                decoder.prefills_first = partial(
                    prefills_first, self._config.schedule, prefiller, decoder, self._loop
                )
        else:
            parts = [*self._prefillers, *self._decoders]
        for part in parts:
            self._loop.spawn(part.serve(), name=part.instance.name)
        try:
            await self._loop.wait(Event(self._loop))
        finally:
            self._proxy.close()


def alive(parts: Sequence[Part], lost: PooledInstance) -> Sequence[Part]:
    return [part for part in parts if part.instance is not lost]


async def prefills_first(schedule: str, prefiller: Prefiller, decoder: Decoder, loop: Loop) -> None:
    """The prefills that come before decoding, on an instance of a unified schedule.

    (a) `prefill_first`: all queued prefills, while host memory has room for their KV too. (b)
    `decode_first`: prefills while there is nothing to decode.
    """
    first = schedule == "prefill_first"
    while prefiller.queue and (not decoder.work_list or (first and prefiller.host_has_room())):
        while prefiller.queue and not await prefiller.step():  # what it begins must come to its end
            if prefiller.scaler.crowded:
                return
            await loop.wait(prefiller.scaler.wake)
            prefiller.scaler.wake.clear()
        prefiller.scaler.wake.clear()
