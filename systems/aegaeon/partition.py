"""Which instances prefill and which decode (§4.1, §7.2)."""

from __future__ import annotations

from collections.abc import Sequence

from harness.pooled.instance import PooledInstance

PREFILL_SHARE = 6 / 16  # §7.2: six of 16 GPUs


def partitions(
    pool: Sequence[PooledInstance], num_prefill: int | None
) -> tuple[list[PooledInstance], list[PooledInstance]]:
    """(prefill instances, decode instances), both spread over the nodes as evenly as possible.

    num_prefill: None: `PREFILL_SHARE` of the pool. Raises ValueError if a partition would be empty.
    """
    if len(pool) < 2:
        raise ValueError(
            "system aegaeon needs at least two pooled instances, one to prefill and one to decode, "
            f"and has {len(pool)}: raise hardware.num_devices, or, if this engine has none, choose "
            "engine=torch or engine=sim"
        )
    if num_prefill is None:
        num_prefill = min(max(round(len(pool) * PREFILL_SHARE), 1), len(pool) - 1)
    if not 1 <= num_prefill < len(pool):
        raise ValueError(
            f"system.num_prefill={num_prefill} must be from 1 to {len(pool) - 1}: of {len(pool)} "
            "instances some must prefill and some decode"
        )
    place_in_node: dict[str, int] = {}
    for node in {instance.node for instance in pool}:
        members = [instance.name for instance in pool if instance.node == node]
        place_in_node |= {name: index for index, name in enumerate(members)}
    spread = sorted(pool, key=lambda instance: place_in_node[instance.name])
    return spread[:num_prefill], spread[num_prefill:]
