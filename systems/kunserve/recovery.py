"""What happens to a group when a member dies (§4.3, fault tolerance).

"We re-plan parameters globally once a failure is detected. By replicating parameters in host DRAM,
we can always ensure successful parameter restoration." The paper says no more. Here survivors close
the gap with the fewest layers loaded. Requests with KV at the dead member are computed again. The
next plan starts from the groups as they then are (`plan.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from systems.kunserve.group import Group, Stage, members


def recover(groups: Sequence[Group], dead: str) -> list[Group]:
    """The groups without `dead`; each is a full copy once its members have loaded what they lack.

    The dead member's layers go to its two neighbours in the pipeline, so that these are as equally
    long as possible. An instance that was alone leaves no gap. Raises ValueError if `dead` is in no
    group.
    """
    if all(dead not in members(group) for group in groups):
        raise ValueError(f"{dead} is in no group")
    after = []
    for group in groups:
        if dead not in members(group):
            after.append(group)
        elif len(group) > 1:
            after.append(_closed(group, members(group).index(dead)))
    return after


def _closed(group: Group, place: int) -> Group:
    stages, gap = list(group), group[place].layers
    if place == 0:
        cut = gap.start
    elif place == len(group) - 1:
        cut = gap.stop
    else:
        first, last = stages[place - 1].layers.start, stages[place + 1].layers.stop
        cut = min(max((first + last) // 2, gap.start), gap.stop)
    if place > 0:
        before = stages[place - 1]
        stages[place - 1] = Stage(before.member, range(before.layers.start, cut))
    if place < len(group) - 1:
        behind = stages[place + 1]
        stages[place + 1] = Stage(behind.member, range(cut, behind.layers.stop))
    del stages[place]
    return tuple(stages)
