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
    """The load and the instances of a model at one moment."""

    now_s: float
    load: Load  # its `kv_tokens`: held by decodes, or waiting for room there
    prefills: int  # instances that serve or load
    sending: int  # prefills that serve
    decodes: int
    loading: tuple[bool, bool]  # whether a prefill loads; whether a decode loads
    leaving_tokens: int  # their KV is at prefills; those being computed count too
    moving_tokens: int  # of computed prompts whose KV is not at a decode yet


class PaperPolicy:
    """The paper's policy (§5.3). transfer_tokens_per_s: KV in or out of an instance's NICs."""

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
        """(prefills, decodes) that there should be: the most that one resource of the role needs.

        Resources of prefills are compute and NICs; of decodes, room for KV and NICs. The bounds on
        NICs are our reading: §5.3 measures an instance's tokens/s and KV, and does not say of which
        resource they are a share.
        """
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
                # While an instance loads, the load is not judged: the timeout begins afterwards.
                judged = inf if seen.loading[i] else demand
                low = below.after(seen.now_s, judged, capacity, bounds, running)
                counts.append(policy.wanted(demand, capacity, bounds, running, below=low))
            found.append(self._ranges[i].clamp(max(counts)))
        return found[0], found[1]


class ColocatedPolicy:
    """The paper's policy for colocated instances (§5.4): tokens/s and KV, and no KV over NICs.

    The time that decodes take is not part of the demand; the upper bound on prefills leaves it.
    """

    def __init__(self, config: Config, capacity: Capacity, instances: Range) -> None:
        chosen = config.chosen
        self._capacity, self._drain_s, self._range = capacity, config.drain_s, instances
        self._bounds = chosen.prefill.bounds(), chosen.decode.bounds()
        self._below = [Below(chosen.timeout_s) for _ in range(2)]

    def wanted(self, seen: Seen) -> tuple[int, int]:
        """(colocated instances, 0)."""
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
    """The published code's policy. transfer_tokens_per_s: KV into a decode instance."""

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
        """(prefills, decodes) that there should be, with one scale-down per timeout."""
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
