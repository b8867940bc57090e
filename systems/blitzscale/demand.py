"""How many prefill and decode instances a load needs, by the paper's policy or the artifact's."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from systems.blitzscale import artifact, policy
from systems.blitzscale.config import Config
from systems.blitzscale.monitor import Load
from systems.blitzscale.policy import Below, Capacity, Range


@dataclass(kw_only=True, slots=True, frozen=True)
class Seen:
    """At one moment. `kv_tokens` are those that decodes hold or that wait for room there."""

    now_s: float
    load: Load
    prefills: int  # instances that serve or load
    sending: int  # prefills that serve
    decodes: int
    loading: tuple[bool, bool]  # a prefill; a decode
    leaving_tokens: int  # whose KV a prefill holds, those that it computes included
    moving_tokens: int  # prompts computed whose KV is not at a decode yet


class PaperPolicy:
    """`transfer_tokens_per_s`: of KV into or out of an instance, as its NICs are."""

    def __init__(
        self, config: Config, capacity: Capacity, prefills: Range, decodes: Range,
        transfer_tokens_per_s: float,
    ) -> None:  # fmt: skip
        chosen = config.chosen
        self._capacity, self._drain_s = capacity, config.drain_s
        self._transfer_per_s = transfer_tokens_per_s
        self._ranges = prefills, decodes
        bounds = chosen.prefill.bounds(), chosen.decode.bounds(), chosen.migration.bounds()
        self._prefill, self._decode, self._migration = bounds
        self._below = [[Below(chosen.timeout_s) for _ in range(2)] for _ in range(2)]

    def wanted(self, seen: Seen) -> tuple[int, int]:
        """The most that one of the resources of a role asks for: of prefills, compute and NICs; of
        decodes, room for KV and NICs. The bounds on NICs are our reading: §5.3 measures tokens/s
        and KV of an instance and says of neither which resource it is a share of."""
        arriving = policy.prefill_demand_per_s(seen.load, self._drain_s)
        made_each_per_s = self._capacity.prefill_tokens_per_s  # KV comes no faster
        leaving = min(seen.load.prompt_tokens_per_s, seen.prefills * made_each_per_s)
        made = min(seen.load.prompt_tokens_per_s, seen.sending * made_each_per_s)
        sent = seen.sending * self._migration.upper * self._transfer_per_s  # more decodes wait, too
        coming = min(made + seen.moving_tokens / self._drain_s, sent)  # their NICs have the queue
        demands = (
            [
                (arriving, self._capacity.prefill_tokens_per_s, self._prefill),
                (leaving, self._transfer_per_s, self._migration),
            ],
            [
                (float(seen.load.kv_tokens), float(self._capacity.kv_tokens), self._decode),
                (coming, self._transfer_per_s, self._migration),
            ],
        )
        found = []
        for i, running in enumerate((seen.prefills, seen.decodes)):
            counts = []
            for below, (demand, capacity, bounds) in zip(self._below[i], demands[i], strict=True):
                # An instance that is not there yet is not judged: the timeout begins when it is.
                judged = inf if seen.loading[i] else demand
                low = below.after(seen.now_s, judged, capacity, bounds, running)
                counts.append(policy.wanted(demand, capacity, bounds, running, below=low))
            found.append(self._ranges[i].clamp(max(counts)))
        return found[0], found[1]


class ColocatedPolicy:
    """Instances that do both (§5.4): the same two loads, tokens/s and KV, and no KV that crosses
    NICs. What decodes take of an instance's time is not in its demand: the bound on prefills
    leaves a part of it."""

    def __init__(self, config: Config, capacity: Capacity, instances: Range) -> None:
        chosen = config.chosen
        self._capacity, self._drain_s, self._range = capacity, config.drain_s, instances
        self._bounds = chosen.prefill.bounds(), chosen.decode.bounds()
        self._below = [Below(chosen.timeout_s) for _ in range(2)]

    def wanted(self, seen: Seen) -> tuple[int, int]:
        """How many that do both, and none that only decode."""
        demands = (
            policy.prefill_demand_per_s(seen.load, self._drain_s), float(seen.load.kv_tokens)
        )  # fmt: skip
        capacities = self._capacity.prefill_tokens_per_s, float(self._capacity.kv_tokens)
        counts = []
        for below, demand, capacity, bounds in zip(
            self._below, demands, capacities, self._bounds, strict=True
        ):
            judged = inf if seen.loading[0] else demand
            low = below.after(seen.now_s, judged, capacity, bounds, seen.prefills)
            counts.append(policy.wanted(demand, capacity, bounds, seen.prefills, below=low))
        return self._range.clamp(max(counts)), 0


class ArtifactPolicy:
    """`transfer_tokens_per_s`: of KV into a decode instance."""

    def __init__(
        self, config: Config, capacity: Capacity, prefills: Range, decodes: Range,
        block_tokens: int, transfer_tokens_per_s: float,
    ) -> None:  # fmt: skip
        chosen = config.chosen
        self._ranges, self._block_tokens = (prefills, decodes), block_tokens
        self._constants = artifact.Constants(
            max_blocks=capacity.kv_tokens // block_tokens,
            prefill_tokens_per_s=capacity.prefill_tokens_per_s,
            transfer_tokens_per_s=transfer_tokens_per_s, prefill=chosen.prefill.bounds(),
            decode=chosen.decode.bounds(), migration=chosen.migration.bounds(),
        )  # fmt: skip
        self._timeout_s = chosen.timeout_s
        self._last_down_s = 0.0

    def wanted(self, seen: Seen) -> tuple[int, int]:
        observed = artifact.Observed(
            used_blocks=-(-seen.load.kv_tokens // self._block_tokens),
            prefill_tokens=seen.leaving_tokens, queued_tokens=seen.load.queued_tokens,
            prefills=seen.prefills, decodes=max(1, seen.decodes),
        )  # fmt: skip
        prefills, decodes = artifact.wanted(observed, self._constants, *self._ranges)
        fewer = prefills < seen.prefills or decodes < seen.decodes
        if fewer and seen.now_s - self._last_down_s < self._timeout_s:  # one step a timeout
            return max(prefills, seen.prefills), max(decodes, seen.decodes)
        if fewer:
            self._last_down_s = seen.now_s
        return prefills, decodes
