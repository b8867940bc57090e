"""How many layers of each batch the new instance runs while it loads (§5.2): the schedulers.

Each takes a `Pair` and gives the limits for `pair.replay`. The integer program is in `ilp`.
"""

from __future__ import annotations

from systems.blitzscale.timeline import Pair, replay


def stop_the_world(pair: Pair) -> list[int]:
    """The source runs all layers."""
    return [0] * len(pair.layer_s)


def overlap(pair: Pair) -> list[int]:
    """Loading beside inference within one instance (Fig. 9 (c), PipeSwitch): a whole batch runs on
    one of the two instances, where it ends first.

    Not live: the new instance ends no batch before its last layer is there.
    """
    limits: list[int] = []
    for batch in range(len(pair.layer_s)):
        ends_s = []
        for limit in (0, pair.num_layers):
            tried = [*limits, limit]
            shown = Pair(
                num_layers=pair.num_layers,
                layer_s=pair.layer_s[: batch + 1],
                ready_s=pair.ready_s,
                source_free_s=pair.source_free_s,
                hop_s=pair.hop_s[: batch + 1],
            )
            ends_s.append(replay(shown, tried).ends_s[batch])
        limits.append(0 if ends_s[0] <= ends_s[1] else pair.num_layers)
    return limits


def best_effort(pair: Pair) -> list[int]:
    """Fig. 15 (a): when the target comes to a batch, it runs the layers that are loaded, at most
    half of all layers. It does not come back to the batch."""
    limits = []
    now_s = 0.0
    for layer_s in pair.layer_s:
        limits.append(best_effort_limit(pair.loaded(now_s), pair.num_layers))
        now_s += limits[-1] * layer_s
    return limits


def best_effort_limit(loaded: int, num_layers: int, in_time: int | None = None) -> int:
    """The limit of the batch that the target comes to now.

    in_time: after so many layers, at least one, its activations arrive when the source is free;
    None: activations take no time, as in the paper.
    """
    most = min(loaded, num_layers // 2)
    return most if in_time is None else min(most, max(1, in_time))


def ilp_free(pair: Pair) -> list[None]:
    """Fig. 16: no limits; the rules of `zigzag` decide."""
    return [None] * len(pair.layer_s)
