"""A lender and those who borrow of it: one consumer (section 5), or, where the lender is a
tensor-parallel group, up to one for each of its devices (Fig. 11). Each consumer borrows of devices
of its own, so that one producer's device lends to one consumer's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path

from harness.clock import Loop
from harness.elastic.cluster import ElasticCluster
from harness.elastic.instance import ElasticInstance
from harness.elastic.kv_store import KvStore
from harness.errors import UsageError
from harness.request import Request
from systems.aqua.config import AquaConfig
from systems.aqua.leases import Leases, beat
from systems.aqua.lender import Borrower, Lender
from systems.aqua.pair import Drop, Pair
from systems.aqua.profiler.profile import read_profile
from systems.serving.iteration import Limits

BEATS = 4  # heartbeats within the coordinator's timeout


def borrowers(lender: ElasticInstance, consumers: Sequence[ElasticInstance]) -> list[Borrower]:
    """A lone consumer borrows of the whole lender, which acts as one device; of several, each of as
    many of the lender's devices as it has itself, the first ones first."""
    if len(consumers) == 1:
        (one,) = consumers
        return [Borrower(lender.name, range(one.model.tp), one.layout)]
    found, at = [], 0
    for each in consumers:
        devices = range(at, at + each.model.tp)
        found.append(Borrower(f"{lender.name}.{at}", devices, each.layout))
        at = devices.stop
    return found


class Group:
    """`leases`: None: there is DRAM alone. `drams`: each consumer's part of it. `model_of`: a
    request's model by its own name. `drop`: gives a request up, for a reason. `orphan`: called with
    a request that no instance left here has the model of."""

    def __init__(
        self, config: AquaConfig, elastic: ElasticCluster, consumers: Sequence[ElasticInstance],
        lender: ElasticInstance, leases: Leases | None, drams: Sequence[KvStore], loop: Loop,
        model_of: Callable[[Request], str], drop: Drop, orphan: Callable[[Request], None],
    ) -> None:  # fmt: skip
        self._config, self._elastic, self._loop = config, elastic, loop
        self._leases = leases
        self._parts = borrowers(lender, consumers)
        limits = Limits(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            enable_chunked_prefill=True,
            scheduler_reserve_full_isl=True,
        )
        self.lender = Lender(
            elastic, lender, self._parts, leases, limits, config.informer_config(),
            profiled(config, lender), loop, self._lender_died,
        )  # fmt: skip
        self.pairs = [
            Pair(
                config, elastic, consumer, self.lender, part.place, leases, dram, loop, model_of,
                drop, orphan,
            )
            for consumer, part, dram in zip(consumers, self._parts, drams, strict=True)
        ]  # fmt: skip
        if leases is not None:
            leases.on_change.append(self.lender.nudge)

    @property
    def instances(self) -> list[ElasticInstance]:
        return [*(pair.consumer.instance for pair in self.pairs), self.lender.instance]

    async def start(self) -> None:
        """Joins the coordinator, and begins to serve."""
        for pair in self.pairs:
            consumer = pair.consumer.instance
            await self._join("consumer", consumer, [consumer.name])
        lender = self.lender.instance
        await self._join("lender", lender, [part.place for part in self._parts])
        self._loop.spawn(self.lender.serve(), name=f"lender {lender.name}")
        for pair in self.pairs:
            name = f"consumer {pair.consumer.instance.name}"
            self._loop.spawn(pair.consumer.serve(), name=name)

    async def _join(self, role: str, instance: ElasticInstance, holders: Sequence[str]) -> None:
        self._elastic.take(instance, role)
        if self._leases is None:
            return
        interval_s = self._config.coordinator.heartbeat_timeout_s / BEATS
        for holder in holders:
            await self._leases.join(holder)
            pulse = beat(self._leases.coordinator, holder, instance, interval_s, self._loop)
            self._loop.spawn(pulse, name=f"heartbeat of {holder}")

    def lost(self, instance: ElasticInstance) -> None:
        """One of `instances` is dead."""
        for pair in self.pairs:
            if instance in (pair.consumer.instance, self.lender.instance):
                pair.lost(instance)

    def _lender_died(self, left: Sequence[Request]) -> None:
        """What it was to serve goes to the consumers, in turn."""
        for number, pair in enumerate(self.pairs):
            pair.take_over(left[number :: len(self.pairs)])


def profiled(config: AquaConfig, lender: ElasticInstance) -> tuple[float, int]:
    """Its stable rate and the bytes of each device that are free at it."""
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
