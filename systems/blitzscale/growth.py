"""What to do to get a wanted number of instances, with prefills and decodes apart (§5.4).

A decode instance is not loaded live. If one is needed now, a prefill instance becomes a decode,
since both have the same parameters, and a new prefill instance is loaded live in its place. If
prefills grow, decodes are scaled beforehand: they load while the prompts are prefilled.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from systems.blitzscale.policy import ROUNDING


@dataclass(slots=True, frozen=True)
class Fleet:
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


def prescaled_decodes(fleet: Fleet, wanted_prefills: int, significant_growth: float) -> int:
    """How many decodes keep their ratio to the wanted prefills; today's number if the growth is not
    significant.

    significant_growth: the least factor, above 1; the paper does not give it.
    """
    growth = wanted_prefills / fleet.prefills
    if growth < significant_growth or growth <= 1:
        return fleet.decodes
    return ceil(fleet.decodes * growth - ROUNDING)


def changes(
    fleet: Fleet, prefills: int, decodes: int, prescaled: int, *, mutation: bool
) -> Changes:
    """What to do for `prefills` and `decodes` instances, and with spares left, for `prescaled`
    decodes.

    mutation: prefills may become decodes. One prefill always stays, so that prompts are prefilled
    while new instances load. Spares go to decodes whose KV has no room, then to prefills, then to
    pre-scaling. If deaths leave a role without an instance and there is no spare, the other role
    gives one up if it has two; the paper leaves that open.
    """
    spare = fleet.spare
    missing = max(0, decodes - fleet.decodes)
    to_mutate = 0 if fleet.decodes or spare else 1
    if mutation:
        to_mutate = max(to_mutate, max(0, fleet.prefills - prefills) + spare)
    mutate = max(0, min(missing, fleet.prefills - 1, to_mutate))
    no_prefill = prefills > 0 and not fleet.prefills
    load_decodes = min(missing - mutate, max(0, spare - 1) if no_prefill else spare)
    spare -= load_decodes
    left = fleet.prefills - mutate
    load_prefills = min(max(0, prefills - left), spare)
    spare -= load_prefills
    beforehand = max(0, prescaled - max(decodes, fleet.decodes))
    stop_decodes = max(0, fleet.decodes - max(decodes, prescaled))
    if no_prefill and not fleet.spare and fleet.decodes > 1:
        stop_decodes = max(1, stop_decodes)
    return Changes(
        mutate=mutate,
        load_prefills=load_prefills,
        load_decodes=load_decodes + min(beforehand, spare),
        stop_prefills=max(0, left - prefills),
        stop_decodes=stop_decodes,
    )
