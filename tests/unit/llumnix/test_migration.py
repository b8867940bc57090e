"""Who migrates where: in the paper's sense, and in that of KunServe's code."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.request import Request
from systems.llumnix.freeness import freeness
from systems.llumnix.migration import (
    Pair,
    PairConfig,
    QueuedMove,
    paired,
    queued_moves,
    victim,
)
from systems.serving.load import Load

CONFIG = PairConfig(source_below=5, target_above=20)


def load(name: str, used: list[int], queued: list[int] | None = None) -> Load:
    queued = queued or []
    return Load(name, 100, sum(used), len(used), len(queued), sum(queued), sum(queued[:1]))


def test_the_least_free_goes_with_the_freest() -> None:
    every = [
        load("a", [50, 49]),  # 0.5
        load("b", [20]),  # 80
        load("c", [50, 50], [10]),  # -5
        load("d", [60]),  # 40
        load("e", [45, 40]),  # 7.5: neither
        load("f", [48, 49]),  # 1.5
    ]
    assert paired(every, CONFIG) == [Pair("c", "b"), Pair("a", "d")]
    with pytest.raises(ValueError, match="source_below=9 must not exceed"):
        PairConfig(source_below=9, target_above=3)


def test_the_least_important_and_shortest_migrates() -> None:
    sizes = {0: (30, 1), 1: (90, 0), 2: (50, 0)}  # prompt tokens, priority
    running = [
        Request(number, 0.0, "m", tokens, 9, priority=priority)
        for number, (tokens, priority) in sizes.items()
    ]
    assert victim(running, lambda tokens: -(-tokens // 16)) is running[2]
    assert victim([], int) is None


def test_kunserves_code_moves_the_shortest_queued() -> None:
    queue = [40, 10, 20, 10]
    full = load("a", [60, 35], queue)  # spare: 5 - 80
    spare = [load("b", [50]), load("c", [20])]  # 50, 80
    # Half of 80 + 75: 77 blocks go, the shortest first.
    assert queued_moves(full, queue, spare) == [
        QueuedMove(1, "c"),
        QueuedMove(3, "c"),
        QueuedMove(2, "c"),
    ]
    assert queued_moves(load("a", [60, 35], [4]), [4], spare) == []  # it fits
    assert queued_moves(load("a", [60, 35], [5]), [5], spare) == [QueuedMove(0, "c")]  # ≥, not >
    assert queued_moves(full, queue, []) == []


lists = st.lists(
    st.tuples(st.lists(st.integers(1, 30), max_size=5), st.lists(st.integers(1, 60), max_size=4)),
    min_size=2,
    max_size=6,
)


@settings(deadline=None)
@given(parts=lists)
def test_nobody_is_in_two_pairs_and_each_goes_uphill(
    parts: list[tuple[list[int], list[int]]],
) -> None:
    every = [load(f"i{k}", used, queued) for k, (used, queued) in enumerate(parts)]
    free = {each.name: freeness(each) for each in every}
    pairs = paired(every, CONFIG)
    names = [name for pair in pairs for name in pair]
    assert len(set(names)) == len(names)
    assert all(free[pair.source] < 5 < 20 < free[pair.target] for pair in pairs)
    sources = sum(value < 5 for value in free.values())
    targets = sum(value > 20 for value in free.values())
    assert len(pairs) == min(sources, targets)


@settings(deadline=None)
@given(parts=lists)
def test_queued_moves_never_make_the_target_the_worse_one(
    parts: list[tuple[list[int], list[int]]],
) -> None:
    source, *others = [load(f"i{k}", used, queued) for k, (used, queued) in enumerate(parts)]
    queue = parts[0][1]
    moves = queued_moves(source, queue, others)
    assert len({move.place for move in moves}) == len(moves)
    if moves:
        (target,) = {move.target for move in moves}
        went = sum(queue[move.place] for move in moves)
        chosen = next(each for each in others if each.name == target)

        def spare(each: Load) -> int:
            return 100 - each.used_blocks - each.queued_blocks

        assert spare(chosen) - went >= spare(source) + went
        assert spare(chosen) == max(spare(each) for each in others)
