"""The order in which KV moves between members that are short of memory (§4.2; the order is ours).

A move needs room at its target before it gives any back at its source. Two full pools that wait for
each other would never end, and half a full pool is more than a group of two frees (23 GB against
14.8 GB for 14B). The paper does not say how it avoids this. What holds here:

    A member's margin is its free slots, plus the slots that its moves will give back, minus the
    slots that moves to it will need. While the margin of every receiving member is at least its
    largest incoming move, some move can start, in whatever order the earlier ones went.

    Proof: if no move can start, each receiving member has fewer free slots than any move to it
    needs, so fewer than its margin: more slots will leave it than come to it. But all slots that
    leave a member come to a member.

So the order may be chosen for the links. `grantable_slots` says how many slots new requests may
take meanwhile. A request that is to move and grows makes its moves larger, which may end the
condition; what then has no room is tried again. A slot is one layer's keys and values of one block.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

LinkName = tuple[str, str]  # from, to


class Move(NamedTuple):
    """KV of one request and some layers. Its attention changes place when all of it has moved."""

    request_id: int
    layers: range
    source: str
    target: str
    slots: int  # taken at the target at the start, given back at the source at the end

    @property
    def link(self) -> LinkName:
        return self.source, self.target


def ordered(moves: Iterable[Move], free: Mapping[str, int]) -> list[Move]:
    """An order in which no member ever holds more than it has room for: one move after the other,
    or side by side if started in this order. Moves without room are left out: attention stays where
    the KV is until requests end.

    free: free slots of each member now. Links take turns, the link that has sent the least first,
    so that all carry KV at once. On each link smaller moves go first, since each ended move ends
    one remote attention.
    """
    room = dict(free)
    links: dict[LinkName, deque[Move]] = defaultdict(deque)
    for move in sorted(moves, key=lambda m: (m.slots, m.request_id, m.layers.start)):
        links[move.link].append(move)
    turns = [(0, link) for link in sorted(links)]  # a heap: slots sent, link
    blocked: dict[str, list[tuple[int, LinkName]]] = defaultdict(list)  # by the full target
    first: list[Move] = []
    while turns:
        sent, link = heapq.heappop(turns)
        move = links[link][0]
        if not fits(move, room):
            blocked[move.target].append((sent, link))
            continue
        apply(links[link].popleft(), room)
        first.append(move)
        if links[link]:
            heapq.heappush(turns, (sent + move.slots, link))
        for freed in blocked.pop(move.source, ()):
            heapq.heappush(turns, freed)
    return first


def fits(move: Move, room: Mapping[str, int]) -> bool:
    """Whether the target has room for the move."""
    return room[move.target] >= move.slots


def apply(move: Move, room: dict[str, int]) -> None:
    """Changes `room` to what it is after `move`."""
    room[move.target] -= move.slots
    room[move.source] += move.slots


def margins(
    waiting: Iterable[Move], free: Mapping[str, int], flying: Iterable[Move] = ()
) -> dict[str, int]:
    """Each member's free slots once all moves have ended; negative: not all moves can end.

    flying: moves that have started; `free` is already without their slots.
    """
    room = dict(free)
    for move in waiting:
        apply(move, room)
    for move in flying:
        room[move.source] += move.slots
    return room


def largest_incoming(moves: Iterable[Move]) -> dict[str, int]:
    """{receiving member: slots of its largest move}."""
    largest: dict[str, int] = {}
    for move in moves:
        largest[move.target] = max(largest.get(move.target, 0), move.slots)
    return largest


def grantable_slots(
    waiting: Sequence[Move], free: Mapping[str, int], flying: Iterable[Move] = ()
) -> dict[str, int] | None:
    """How many free slots of each member new requests may take while moves wait to start, so that
    the condition of this module still holds afterwards. None: it does not hold now.

    If it holds, it holds until the last move has ended.
    """
    margin, largest = margins(waiting, free, flying), largest_incoming(waiting)
    if any(margin[member] < slots for member, slots in largest.items()):
        return None
    return {
        member: min(slots, margin[member] - largest.get(member, 0))
        for member, slots in free.items()
    }
