"""Pairs overloaded prefills with instances that load (§5.2).

The tails of each plan's chains are remembered, with the times at which their layers are expected.
At each look of the monitor, tails that still load and have no pair are offered to overloaded
prefills without a pair (`selection`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from harness.clock import Loop
from harness.cluster import Cluster
from harness.elastic.cluster import ElasticCluster
from harness.model_spec import ModelSpec
from systems.blitzscale.chains import Plan, expected_s
from systems.blitzscale.config import Config
from systems.blitzscale.fabric import Fabric
from systems.blitzscale.limits import Limits
from systems.blitzscale.live import Pair
from systems.blitzscale.role import Role
from systems.blitzscale.selection import LivePair, Overloaded, live_pairs
from systems.blitzscale.serving import Serving
from systems.blitzscale.shutdown import State
from systems.blitzscale.slots import Fleet, Slot


class Pairing:
    """The live pairs of one model.

    prefill_tokens_per_s: of an instance, as profiled. arriving: gives prompt tokens/s.
    """

    def __init__(
        self, config: Config, fleet: Fleet, fabric: Fabric, serving: Serving, cluster: Cluster,
        elastic: ElasticCluster, model: ModelSpec, layers_bytes: list[float], loop: Loop,
        prefill_tokens_per_s: float, arriving: Callable[[], float],
    ) -> None:  # fmt: skip
        self._config, self._fleet, self._fabric, self._serving = config, fleet, fabric, serving
        self._cluster, self._elastic, self._loop = cluster, elastic, loop
        self._model, self._layers_bytes = model, layers_bytes
        self._rate, self._arriving = prefill_tokens_per_s, arriving
        self._limits = Limits(config.scheduler, config.ilp_solving_s, loop)
        self._ready_s: dict[str, list[float]] = {}  # {tail: when each layer is expected}
        self._pairs: list[Pair] = []

    @property
    def queued_tokens(self) -> int:
        """Tokens of prompts that wait in pairs."""
        return sum(pair.queued_tokens for pair in self._pairs)

    def planned(self, plan: Plan) -> None:
        """Remembers the tails of `plan`; a plan after a death replaces their times."""
        if self._config.zigzag:
            after_s = expected_s(plan, self._layers_bytes)
            for name in after_s:
                self._ready_s.pop(name, None)
            now_s = self._loop.now
            for tail in plan.tails():
                if tail.live:
                    self._ready_s[tail.name] = [now_s + each for each in after_s[tail.name]]
            self.look()

    def look(self) -> None:
        """Pairs tails that load with overloaded prefills."""
        if not self._ready_s:
            return
        now_s = self._loop.now
        loading = {slot.name: slot for slot in self._fleet.of(Role.PREFILL, State.LOADING)}
        self._ready_s = {name: at for name, at in self._ready_s.items() if name in loading}
        tails_s = {
            name: max(0.0, at[-1] - now_s)
            for name, at in self._ready_s.items()
            if not loading[name].paired
        }
        if not tails_s:
            return
        for pair in live_pairs(tails_s, self._overloaded(), self._config.live_slo_s):
            self._begin(pair)

    def _overloaded(self) -> list[Overloaded]:
        serving = self._fleet.of(Role.PREFILL, State.SERVING)
        if not serving:
            return []
        waiting = self._serving.prompts.tokens + self.queued_tokens
        queued_s = waiting / len(serving) / self._rate
        arriving = self._arriving() / len(serving) / self._rate
        return [
            Overloaded(
                name=slot.name, backlog_s=queued_s + self._at_s(slot), arriving=arriving
            )
            for slot in serving
            if not slot.paired
        ]  # fmt: skip

    def _at_s(self, slot: Slot) -> float:
        """Seconds left of the batch that `slot` prefills, as profiled."""
        if slot.batch is None:
            return 0.0
        since_s, tokens = slot.batch
        end_s = since_s + self._cluster.profile.prefill_s(self._model, tokens)
        return max(0.0, end_s - self._loop.now)

    def _begin(self, pair: LivePair) -> None:
        source, target = self._fleet.named(pair.source), self._fleet.named(pair.target)
        driver = Pair(
            source, target, self._ready_s[pair.target], self._limits,
            partial(self._hop_s, source, target), self._config.most_live_batches(),
            self._serving, self._elastic, self._cluster.profile, self._loop,
        )  # fmt: skip
        source.paired = target.paired = True
        self._loop.spawn(self._drive(driver), name=f"{pair.source} and {pair.target}")

    async def _drive(self, pair: Pair) -> None:
        self._pairs.append(pair)
        await pair.drive()
        self._pairs.remove(pair)

    def _hop_s(self, source: Slot, target: Slot, tokens: int) -> float:
        """Seconds of activations from the target to the source, if nothing else uses the links."""
        hardware, lanes = self._elastic.hardware, len(source.devices)
        rate = self._fabric.lane_bytes_per_s(target.devices[0], source.devices[0]) * lanes
        near = source.node == target.node
        latency_s = hardware.nvlink_copy_latency_s if near else hardware.nic_latency_s
        return latency_s + tokens * self._model.activation_bytes_per_token / rate
