"""`variant=artifact`: the number of instances as the published code computes it.

Facts about blitz-serving/blitz-scale@594e911, router_v2/src/replica/cybernetics/planner.rs:331.
Each number is computed with an upper and a lower bound on the load; between the two nothing
changes. Which bounds go with the KV term (`migration`) is inferred from their names.
"""

from __future__ import annotations

from math import ceil

from systems.blitzscale.config import ROUNDING, Config, Ranges
from systems.blitzscale.instances import Role
from systems.blitzscale.policy import Capacity, Seen


class ArtifactPolicy:
    """The published code's policy. block_tokens: of a block of KV, which the code counts."""

    def __init__(
        self, config: Config, capacity: Capacity, ranges: Ranges, block_tokens: int
    ) -> None:
        self._chosen, self._capacity, self._ranges = config.chosen, capacity, ranges
        self._block_tokens = block_tokens
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
        used_blocks = -(-seen.kv_tokens // self._block_tokens)
        return _ceil(used_blocks / bound / (self._capacity.kv_tokens // self._block_tokens))

    def _transfer(self, seen: Seen, bound: float) -> int:
        """Decodes into which the KV at prefills goes in one second."""
        rate = max(1, seen.decodes) * self._capacity.transfer_tokens_per_s
        return _ceil(seen.leaving_tokens / bound / rate)

    def _backlog(self, seen: Seen, bound: float) -> int:
        """Prefills that clear the queue in one second."""
        return _ceil(seen.queued_tokens / bound / self._capacity.prefill_tokens_per_s)


def _moved(count: int, least: int, most: int) -> int:
    """Up: at once to the middle of `least` and `most`. Down: by one."""
    if least > count:
        return (least + most + 1) // 2
    return count - 1 if most < count else count


def _ceil(count: float) -> int:
    return ceil(count - ROUNDING)
