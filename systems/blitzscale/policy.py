"""How many instances a load needs: the paper's monitor and policy (§5.3), in our reading.

If the average load of an instance exceeds an upper bound, as many are added as bring it back to the
bound. If it is below a lower bound for a timeout, the surplus is stopped. The load is a share of an
instance's capacity, which is profiled. The paper gives no formula, and no number but "sub-second".
The formulas of its code are in `ArtifactPolicy`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil, inf

from systems.blitzscale.config import ROUNDING, Bounds, Config, Ranges
from systems.blitzscale.instances import Fleet, Role


@dataclass(kw_only=True, slots=True)  # not frozen: each look makes one, in half the time
class Seen:
    """The load and the instances of a model at one moment."""

    now_s: float
    prompt_tokens_per_s: float  # arriving, on average over the monitor's window
    queued_tokens: int  # of prompts that wait for their prefill
    kv_tokens: int  # held by decodes, or waiting for room there
    prefills: int  # instances that serve or load
    sending: int  # prefills that serve
    decodes: int
    loading: tuple[bool, bool]  # whether a prefill loads; whether a decode loads
    leaving_tokens: int  # their KV is at prefills; those being computed count too
    moving_tokens: int  # of computed prompts whose KV is not at a decode yet

    def prefill_demand_per_s(self, drain_s: float) -> float:
        """The larger of two rates in tokens/s: arriving tokens (§5.3), and what clears the queue in
        `drain_s`.

        The paper's code looks only at the queue, with 1 s. A prompt that has just come is in both,
        and must not count twice.
        """
        return max(self.prompt_tokens_per_s, self.queued_tokens / drain_s)


class Monitor:
    """Counts the prompt tokens that arrived within a window."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._arrivals: deque[tuple[float, int]] = deque()
        self._tokens = 0

    def arrived(self, now_s: float, prompt_tokens: int) -> None:
        """Counts a prompt."""
        self._forget(now_s)
        self._arrivals.append((now_s, prompt_tokens))
        self._tokens += prompt_tokens

    def tokens_per_s(self, now_s: float) -> float:
        """The average of arrivals in (now - window, now]."""
        self._forget(now_s)
        return self._tokens / self._window_s

    def _forget(self, now_s: float) -> None:
        while self._arrivals and self._arrivals[0][0] <= now_s - self._window_s:
            self._tokens -= self._arrivals.popleft()[1]


@dataclass(kw_only=True, slots=True, frozen=True)
class Capacity:
    """The capacity of one instance, profiled before the run."""

    prefill_tokens_per_s: float
    kv_tokens: int
    transfer_tokens_per_s: float  # KV in or out of its NICs; infinity: KV crosses no NIC
    block_tokens: int  # of a block of KV, which the published code counts


def profiled(config: Config, fleet: Fleet) -> Capacity:
    """The capacity of an instance of `fleet` with full prefill batches."""
    model, hardware = fleet.model, fleet.cluster.hardware
    layout = fleet.slots[0].instance.layout
    transfer_per_s = hardware.nic_bytes_per_s * model.tp / model.held_kv_bytes_per_token
    if config.variant == "paper" and (hardware.num_nodes == 1 or not transfer_per_s):
        transfer_per_s = inf
    return Capacity(
        prefill_tokens_per_s=config.batch_tokens
        / fleet.profile.prefill_s(model, config.batch_tokens),
        kv_tokens=layout.num_pages() // layout.num_groups * layout.block_tokens,
        transfer_tokens_per_s=transfer_per_s,
        block_tokens=layout.block_tokens,
    )


class Resource:
    """A resource of the instances of a role, with bounds on its average load.

    capacity: of one instance, in the unit of the demand. timeout_s: how long the load must be below
    the lower bound before the surplus is stopped.
    """

    def __init__(self, capacity: float, bounds: Bounds, timeout_s: float) -> None:
        self._capacity, self._bounds, self._timeout_s = capacity, bounds, timeout_s
        self._low_since_s: float | None = None

    def wanted(self, now_s: float, demand: float, running: int, *, loading: bool = False) -> int:
        """How many instances `demand` needs, with `running` now. Call it at every look.

        While an instance is `loading`, the load is not judged to be low: the timeout begins
        afterwards. At a constant demand a second call changes nothing.
        """
        low = self._is_low(now_s, inf if loading else demand, running)
        limit = self._bounds.upper * self._capacity
        enough = ceil(demand / limit - ROUNDING)
        if demand > limit * running * (1 + ROUNDING):
            return enough
        return min(enough, running) if low else running

    def _is_low(self, now_s: float, demand: float, running: int) -> bool:
        """Whether the load has been below the lower bound for the timeout."""
        if demand >= self._bounds.lower * self._capacity * running:
            self._low_since_s = None
            return False
        if self._low_since_s is None:
            self._low_since_s = now_s
        return now_s - self._low_since_s >= self._timeout_s


class PaperPolicy:
    """The paper's policy (§5.3). ranges: how many instances of each role there may be."""

    def __init__(self, config: Config, capacity: Capacity, ranges: Ranges) -> None:
        chosen, transfer = config.chosen, capacity.transfer_tokens_per_s
        self._ranges, self._capacity, self._drain_s = ranges, capacity, config.drain_s
        self._migration = chosen.migration
        self._compute = Resource(capacity.prefill_tokens_per_s, chosen.prefill, chosen.timeout_s)
        self._memory = Resource(float(capacity.kv_tokens), chosen.decode, chosen.timeout_s)
        self._egress = Resource(transfer, chosen.migration, chosen.timeout_s)
        self._ingress = Resource(transfer, chosen.migration, chosen.timeout_s)

    def wanted(self, seen: Seen) -> tuple[int, int]:
        """(prefills, decodes) that there should be: the most that one resource of the role needs.

        Resources of prefills are compute and NICs; of decodes, room for KV and NICs. The bounds on
        NICs are our reading: §5.3 measures an instance's tokens/s and KV, and does not say of which
        resource they are a share.
        """
        made_each_per_s = self._capacity.prefill_tokens_per_s  # KV comes no faster
        leaving = min(seen.prompt_tokens_per_s, seen.prefills * made_each_per_s)
        made = min(seen.prompt_tokens_per_s, seen.sending * made_each_per_s)
        transfer_per_s = self._capacity.transfer_tokens_per_s
        sent = seen.sending * self._migration.upper * transfer_per_s  # more decodes wait, too
        coming = min(made + seen.moving_tokens / self._drain_s, sent)  # their NICs have the queue

        now_s, loading = seen.now_s, seen.loading
        arriving = seen.prefill_demand_per_s(self._drain_s)
        prefills = max(
            self._compute.wanted(now_s, arriving, seen.prefills, loading=loading[0]),
            self._egress.wanted(now_s, leaving, seen.prefills, loading=loading[0]),
        )
        decodes = max(
            self._memory.wanted(now_s, seen.kv_tokens, seen.decodes, loading=loading[1]),
            self._ingress.wanted(now_s, coming, seen.decodes, loading=loading[1]),
        )
        return self._ranges[Role.PREFILL].clamp(prefills), self._ranges[Role.DECODE].clamp(decodes)


class ColocatedPolicy(PaperPolicy):
    """The paper's policy for colocated instances (§5.4): tokens/s and KV, and no KV over NICs.

    The time that decodes take is not part of the demand; the upper bound on prefills leaves it.
    """

    def wanted(self, seen: Seen) -> tuple[int, int]:
        """(colocated instances, 0)."""
        now_s, running, loading = seen.now_s, seen.prefills, seen.loading[0]
        arriving = seen.prefill_demand_per_s(self._drain_s)
        count = max(
            self._compute.wanted(now_s, arriving, running, loading=loading),
            self._memory.wanted(now_s, seen.kv_tokens, running, loading=loading),
        )
        return self._ranges[Role.COLOCATED].clamp(count), 0


class ArtifactPolicy:
    """`variant=artifact`: the number of instances as the published code computes it.

    Facts about blitz-serving/blitz-scale@594e911, router_v2/src/replica/cybernetics/planner.rs:331.
    Each number is computed with an upper and a lower bound on the load; between the two nothing
    changes. Which bounds go with the KV term (`migration`) is inferred from their names.
    """

    def __init__(self, config: Config, capacity: Capacity, ranges: Ranges) -> None:
        self._chosen, self._capacity, self._ranges = config.chosen, capacity, ranges
        self._last_down_s = 0.0

    def wanted(self, seen: Seen) -> tuple[int, int]:
        """(prefills, decodes) that there should be: at most one fewer of each than there are, and
        fewer only once a timeout."""
        pre, dec, mig = self._chosen.prefill, self._chosen.decode, self._chosen.migration
        transfer = self._transfer(seen, mig.upper)
        least_decodes = max(self._memory(seen, dec.upper), transfer)
        most_decodes = max(self._memory(seen, dec.lower), self._transfer(seen, mig.lower))
        least_prefills = max(self._backlog(seen, pre.upper), transfer)
        # The code has the upper bound here too, where the lower one is due: a slip, kept.
        most_prefills = max(self._backlog(seen, pre.lower), transfer)
        prefills = self._ranges[Role.PREFILL].clamp(
            _moved(seen.prefills, least_prefills, most_prefills)
        )
        decodes = self._ranges[Role.DECODE].clamp(
            _moved(max(1, seen.decodes), least_decodes, most_decodes)
        )
        if prefills < seen.prefills or decodes < seen.decodes:
            if seen.now_s - self._last_down_s < self._chosen.timeout_s:
                return max(prefills, seen.prefills), max(decodes, seen.decodes)
            self._last_down_s = seen.now_s
        return prefills, decodes

    def _memory(self, seen: Seen, bound: float) -> int:
        """Decodes that hold the KV."""
        block_tokens = self._capacity.block_tokens
        used_blocks = -(-seen.kv_tokens // block_tokens)
        return _ceil(used_blocks / bound / (self._capacity.kv_tokens // block_tokens))

    def _transfer(self, seen: Seen, bound: float) -> int:
        """Decodes into which the KV at prefills goes in one second."""
        rate = max(1, seen.decodes) * self._capacity.transfer_tokens_per_s
        return _ceil(seen.leaving_tokens / bound / rate)

    def _backlog(self, seen: Seen, bound: float) -> int:
        """Prefills that clear the queue in one second."""
        return _ceil(seen.queued_tokens / bound / self._capacity.prefill_tokens_per_s)


def _moved(count: int, least: int, most: int) -> int:
    """Moves up at once, to the middle of `least` and `most`, and down by one."""
    if least > count:
        return (least + most + 1) // 2
    return count - 1 if most < count else count


def _ceil(count: float) -> int:
    return ceil(count - ROUNDING)


def fixed(ranges: Ranges) -> tuple[int, int] | None:
    """What any policy wants of `ranges` that leave no choice, as DistServe's do; None: they leave
    one."""
    if any(of_role.least < of_role.most for of_role in ranges.values()):
        return None
    prefills, *decodes = (of_role.least for of_role in ranges.values())
    return prefills, sum(decodes)


def make_policy(config: Config, capacity: Capacity, ranges: Ranges) -> PaperPolicy | ArtifactPolicy:
    if config.variant == "artifact":
        return ArtifactPolicy(config, capacity, ranges)
    return (ColocatedPolicy if config.colocation else PaperPolicy)(config, capacity, ranges)
