"""`variant=artifact`: the number of instances as the published code computes it.

Facts about blitz-serving/blitz-scale@594e911, router_v2/src/replica/cybernetics/planner.rs:331.
Each number is computed with an upper and a lower bound on the load; between the two nothing
changes. Which bounds go with the KV term (`migration`) is inferred from their names.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from systems.blitzscale.policy import ROUNDING, Bounds, Range


@dataclass(kw_only=True, slots=True, frozen=True)
class Observed:
    """The load of a model at one moment."""

    used_blocks: int  # of KV, on all decode instances
    prefill_tokens: int  # their KV is at prefill instances and must be sent
    queued_tokens: int  # wait for their prefill; those of live pairs count too
    prefills: int  # instances
    decodes: int


@dataclass(kw_only=True, slots=True, frozen=True)
class Constants:
    """From a model's configuration file."""

    max_blocks: int  # of a decode instance
    prefill_tokens_per_s: float  # of a prefill instance
    transfer_tokens_per_s: float  # of KV into a decode instance
    prefill: Bounds
    decode: Bounds
    migration: Bounds


def wanted(
    seen: Observed, constants: Constants, prefills: Range, decodes: Range
) -> tuple[int, int]:
    """(prefill instances, decode instances) that there should be, at most one fewer of each than
    there are. Raises ValueError without a decode instance."""
    pre, dec, mig = constants.prefill, constants.decode, constants.migration
    min_decodes = max(_memory(seen, constants, dec.upper), _transfer(seen, constants, mig.upper))
    max_decodes = max(_memory(seen, constants, dec.lower), _transfer(seen, constants, mig.lower))
    transfer = _transfer(seen, constants, mig.upper)
    min_prefills = max(_backlog(seen, constants, pre.upper), transfer)
    # The code has the upper bound here too, where the lower one is due: a slip, kept.
    max_prefills = max(_backlog(seen, constants, pre.lower), transfer)
    return (
        prefills.clamp(_moved(seen.prefills, min_prefills, max_prefills)),
        decodes.clamp(_moved(seen.decodes, min_decodes, max_decodes)),
    )


def _moved(count: int, least: int, most: int) -> int:
    """Up: at once to the middle of `least` and `most`. Down: by one."""
    if least > count:
        return (least + most + 1) // 2
    return count - 1 if most < count else count


def _memory(seen: Observed, constants: Constants, bound: float) -> int:
    return _ceil(seen.used_blocks / bound / constants.max_blocks)


def _transfer(seen: Observed, constants: Constants, bound: float) -> int:
    if seen.decodes < 1:
        raise ValueError("there is no decode instance to send KV to")
    rate = seen.decodes * constants.transfer_tokens_per_s
    return _ceil(seen.prefill_tokens / bound / rate)


def _backlog(seen: Observed, constants: Constants, bound: float) -> int:
    """Instances that clear the queue in one second."""
    return _ceil(seen.queued_tokens / bound / constants.prefill_tokens_per_s)


def _ceil(count: float) -> int:
    return ceil(count - ROUNDING)


@dataclass(kw_only=True, slots=True, frozen=True)
class InFlight:
    """How many batches the code's live pair has under way at once: fewer as layers arrive."""

    most: int
    least: int
    step_s: float  # one fewer after each such time

    def after(self, live_s: float) -> int:
        """live_s: seconds since the pair began."""
        return max(self.least, self.most - int(live_s / self.step_s + ROUNDING))
