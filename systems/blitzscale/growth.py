"""What to change to get a wanted number of instances, and which instances (§5.3, §5.4).

A decode instance is not loaded live. If one is needed now, a prefill instance becomes a decode,
since both have the same parameters, and a new prefill instance is loaded live in its place. If
prefills grow, decodes are scaled beforehand: they load while the prompts are prefilled.

A scale-up first takes back shutting instances of its role, then null ones, and only then loads. In
the paper's variant there are no null ones, and taking back a draining instance is our reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from systems.blitzscale.config import ROUNDING
from systems.blitzscale.instances import Role, Slot, State


@dataclass(slots=True, frozen=True)
class Counts:
    """Instances by role. spare: how many more instances fit on free GPUs."""

    prefills: int
    decodes: int
    spare: int


@dataclass(kw_only=True, slots=True, frozen=True)
class Changes:
    """Numbers of instances to change."""

    mutate: int = 0  # prefills that become decodes
    load_prefills: int = 0
    load_decodes: int = 0
    stop_prefills: int = 0
    stop_decodes: int = 0


def prescaled_decodes(counts: Counts, wanted_prefills: int, significant_growth: float) -> int:
    """How many decodes keep their ratio to the wanted prefills; today's number if the growth is not
    significant.

    significant_growth: the least factor, above 1; the paper does not give it.
    """
    growth = wanted_prefills / counts.prefills
    if growth < significant_growth:
        return counts.decodes
    return ceil(counts.decodes * growth - ROUNDING)


def changes(
    counts: Counts, prefills: int, decodes: int, prescaled: int, *, mutation: bool
) -> Changes:
    """What to do for `prefills` and `decodes` instances, and with spares left, for `prescaled`
    decodes.

    mutation: prefills may become decodes. One prefill always stays, so that prompts are prefilled
    while new instances load. Spares go to decodes whose KV has no room, then to prefills, then to
    pre-scaling. If deaths leave a role without an instance and there is no spare, the other role
    gives one up if it has two; the paper leaves that open.
    """
    spare = counts.spare
    missing = max(0, decodes - counts.decodes)
    to_mutate = 0 if counts.decodes or spare else 1
    if mutation:
        to_mutate = max(to_mutate, max(0, counts.prefills - prefills) + spare)
    mutate = max(0, min(missing, counts.prefills - 1, to_mutate))
    no_prefill = prefills > 0 and not counts.prefills
    load_decodes = min(missing - mutate, max(0, spare - 1) if no_prefill else spare)
    spare -= load_decodes
    left = counts.prefills - mutate
    load_prefills = min(max(0, prefills - left), spare)
    spare -= load_prefills
    beforehand = max(0, prescaled - max(decodes, counts.decodes))
    stop_decodes = max(0, counts.decodes - max(decodes, prescaled))
    if no_prefill and not counts.spare and counts.decodes > 1:
        stop_decodes = max(1, stop_decodes)
    return Changes(
        mutate=mutate,
        load_prefills=load_prefills,
        load_decodes=load_decodes + min(beforehand, spare),
        stop_prefills=max(0, left - prefills),
        stop_decodes=stop_decodes,
    )


def revived(members: Sequence[Slot], role: Role, count: int) -> list[Slot]:
    """The instances, at most `count`, that can serve as `role` at once, without a load.

    Draining prefills need a decode for their KV. So if deaths leave no decode, a draining prefill
    may become one.
    """
    draining = [m for m in members if m.state is State.SHUTTING and m.role is role]
    null = [m for m in members if m.state is State.NULL]
    latest_first = sorted(null, key=lambda m: (-m.since_s, m.name))
    ready = sorted(draining, key=lambda m: (-m.tokens, m.name)) + latest_first
    if role is Role.DECODE and all(m.role is not role or m.state is State.NULL for m in members):
        ready += [m for m in members if m.state is State.SHUTTING and m.role is Role.PREFILL]
    return ready[:count]


def least_busy(members: Sequence[Slot], role: Role, count: int) -> list[Slot]:
    """The serving instances, at most `count`, to shut down or mutate: those with the fewest tokens,
    which drain first."""
    serving = [m for m in members if m.state is State.SERVING and m.role is role]
    return sorted(serving, key=lambda m: (m.tokens, m.name))[:count]


def drained(members: Sequence[Slot]) -> list[Slot]:
    """Shutting instances without requests; they become null."""
    return [m for m in members if m.state is State.SHUTTING and m.tokens == 0]


def released(members: Sequence[Slot], now_s: float, null_s: float) -> list[Slot]:
    """Null instances whose time is over. null_s: 0 in the paper's variant; in the artifact's, its
    scale-down threshold."""
    return [m for m in members if m.state is State.NULL and now_s - m.since_s >= null_s]
