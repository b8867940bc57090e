"""As few preemptions as cover what weights that come back are short of."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.request import Request
from systems.kunserve.group_manager import preempted


def running(*pages_and_priorities: tuple[int, int]) -> dict[Request, int]:
    """{request: pages}, oldest first."""
    return {
        Request(k, 0.0, "m", 9, 9, priority=priority): pages
        for k, (pages, priority) in enumerate(pages_and_priorities)
    }


def test_the_least_important_and_newest_first() -> None:
    held = running((30, 0), (20, 0), (50, -1), (10, 5))
    ids = {short: [r.request_id for r in preempted(short, held)] for short in (0, 50, 51, 9999)}
    assert ids == {0: [], 50: [2], 51: [2, 1], 9999: [2, 1, 0, 3]}


@settings(deadline=None)
@given(
    short=st.integers(-10, 500),
    parts=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 2)), max_size=9),
)
def test_it_covers_the_lack_or_takes_all_and_never_one_more(
    short: int, parts: list[tuple[int, int]]
) -> None:
    held = running(*parts)
    found = preempted(short, held)
    got = sum(held[request] for request in found)
    assert got >= short or len(found) == len(held)
    if found:
        assert got - held[found[-1]] < short
