"""What a plan is short of: standby instances first, then as few preemptions as cover it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from systems.kunserve.fallback import Candidate, Fallback, fall_back

RUNNING = [Candidate(0, 30, 0), Candidate(1, 20, 0), Candidate(2, 50, -1), Candidate(3, 10, 5)]


def test_standby_first_then_the_least_important_and_newest() -> None:
    assert fall_back(0, 3, 100, RUNNING) == Fallback(0, [])
    assert fall_back(150, 3, 100, RUNNING) == Fallback(2, [])
    assert fall_back(150, 1, 100, RUNNING) == Fallback(1, [2])
    assert fall_back(151, 1, 100, RUNNING) == Fallback(1, [2, 1])
    assert fall_back(10_000, 0, 100, RUNNING) == Fallback(0, [2, 1, 0, 3])


@settings(deadline=None)
@given(
    short=st.integers(-10, 500),
    standby=st.integers(0, 4),
    running=st.lists(
        st.builds(Candidate, st.integers(), st.integers(1, 60), st.integers(0, 2)),
        unique_by=lambda c: c.request_id,
    ),
)
def test_it_covers_the_lack_or_gives_all_and_never_one_more(
    short: int, standby: int, running: list[Candidate]
) -> None:
    found = fall_back(short, standby, 100, running)
    size = {c.request_id: c.kv_bytes for c in running}
    got = found.started * 100 + sum(size[r] for r in found.preempted)
    assert got >= short or (found.started == standby and len(found.preempted) == len(running))
    if found.preempted:
        assert got - size[found.preempted[-1]] < short
    elif found.started:
        assert (found.started - 1) * 100 < short
