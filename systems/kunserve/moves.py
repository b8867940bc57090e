"""In which order KV moves between members that are short of memory (§4.2; the order is ours).

A move needs room at its target before it gives any back at its source. Two full pools that each
wait for the other never end, and half a full pool is more than a group of two frees (23 GB against
14.8 GB for 14B). The paper does not say how it avoids this. What holds here:

    Let a member's margin be its free slots, plus those that its moves will give back, less those
    that moves to it will need. While every receiving member's margin is at least its largest
    incoming move, some move can start, in whatever order the earlier ones went.

    For if no move can start, each receiving member has less free than any move to it needs, so
    less than its margin: more will leave it than come. But what leaves members comes to members.

So the order is free to please the links. `grantable_slots` and `grown` say what others, and the
moving requests themselves, may take meanwhile.
A slot is one layer's keys and values of one block.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from systems.kunserve.group import Stage


class Move(NamedTuple):
    """KV of one request and some layers; attention on it changes place when all has come."""

    request_id: int
    layers: range
    source: str
    target: str
    slots: int  # taken at the target when it starts, given back at the source when it has ended


LinkName = tuple[str, str]  # from, to


class Order(NamedTuple):
    first: list[Move]  # each can end before the next begins; also start in this order, side by side
    left: list[Move]  # no room: attention stays where the KV is until requests end. Not `waiting`


def ordered(moves: Iterable[Move], free: Mapping[str, int]) -> Order:
    """An order in which no member ever holds more than it has room for.

    free: slots of each member now. Links take turns, the one that has sent least first, so that all
    carry KV at once; on each, smaller moves go first, for each ended move ends a remote attention.
    """
    room = dict(free)
    links: dict[LinkName, deque[Move]] = defaultdict(deque)
    for move in sorted(moves, key=lambda m: (m.slots, m.request_id, m.layers.start)):
        links[move.source, move.target].append(move)
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
    return Order(first, [move for queue in links.values() for move in queue])


def fits(move: Move, room: Mapping[str, int]) -> bool:
    return room[move.target] >= move.slots


def apply(move: Move, room: dict[str, int]) -> None:
    """`room` after `move`, from its start to its end."""
    room[move.target] -= move.slots
    room[move.source] += move.slots


def margins(
    waiting: Iterable[Move], free: Mapping[str, int], flying: Iterable[Move] = ()
) -> dict[str, int]:
    """Each member's free slots once all moves have ended; negative: they cannot all. `flying` have
    started, so `free` is without their slots already."""
    room = dict(free)
    for move in waiting:
        apply(move, room)
    for move in flying:
        room[move.source] += move.slots
    return room


def largest_incoming(moves: Iterable[Move]) -> dict[str, int]:
    """By receiving member."""
    largest: dict[str, int] = {}
    for move in moves:
        largest[move.target] = max(largest.get(move.target, 0), move.slots)
    return largest


def certain_to_end(
    waiting: Sequence[Move], free: Mapping[str, int], flying: Iterable[Move] = ()
) -> bool:
    """Whether the condition above holds now; it then holds until the last move has ended."""
    margin = margins(waiting, free, flying)
    return all(margin[member] >= slots for member, slots in largest_incoming(waiting).items())


def grantable_slots(
    member: str, waiting: Sequence[Move], free: Mapping[str, int], flying: Sequence[Move] = ()
) -> int:
    """How many free slots of `member` new requests may take while moves are still `waiting` to
    start: so many that the exchange is as certain to end afterwards as before. For a request that
    is itself to move see `grown`."""
    margin = margins(waiting, free, flying)[member] - largest_incoming(waiting).get(member, 0)
    return max(0, min(free[member], margin))


class Growth(NamedTuple):
    waiting: list[Move]
    flying: list[Move]
    free: dict[str, int]


def grown(
    request_id: int,
    places: Iterable[Stage],
    waiting: Sequence[Move],
    free: Mapping[str, int],
    flying: Sequence[Move] = (),
) -> Growth | None:
    """The state after a request has taken one more block of every layer; None: it must not yet.

    places: where its KV is; of a move under way, its source still. The block is written there, and
    goes with its layers where they are to move: it takes room at both ends, at the target at once
    if the move is under way. None where a member lacks the slots, or where the exchange was certain
    to end and would be no longer.
    """
    room = dict(free)
    for place in places:
        room[place.member] -= len(place.layers)
    longer_flying = [_longer(move, request_id) for move in flying]
    for before, after in zip(flying, longer_flying, strict=True):
        room[after.target] -= after.slots - before.slots
    longer_waiting = [_longer(move, request_id) for move in waiting]
    if min(room.values()) < 0:
        return None
    certain = certain_to_end(longer_waiting, room, longer_flying)
    if not certain and certain_to_end(waiting, free, flying):
        return None
    return Growth(longer_waiting, longer_flying, room)


def _longer(move: Move, request_id: int) -> Move:
    if move.request_id != request_id:
        return move
    return move._replace(slots=move.slots + len(move.layers))
