"""A region is never overcommitted, and adds up to the byte."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.device.memory import OutOfMemory, Region
from harness.errors import RunError

HOLDINGS = st.tuples(st.sampled_from("abcd"), st.integers(0, 60))


def test_holders_share_a_region() -> None:
    region = Region("node0/dram", 100)
    region.hold("cache", 60)
    region.hold("kv", 30)
    region.hold("kv", 40)
    assert region.free_bytes == 0
    region.hold("cache", 0)
    assert region.held == {"kv": 40}
    assert region.free_bytes == 60


def test_one_byte_too_many_is_refused_and_named() -> None:
    region = Region("node0/gpu1", 100)
    region.hold("weights", 90)
    with pytest.raises(OutOfMemory, match="node0/gpu1 has 10 of 100 bytes free, and 11 more"):
        region.hold("kv", 11)
    assert issubclass(OutOfMemory, RunError)
    region.hold("kv", 10)


@settings(deadline=None)
@given(st.integers(0, 150), st.lists(HOLDINGS, max_size=20))
def test_any_sequence_of_holdings_adds_up_or_changes_nothing(
    capacity: int, steps: list[tuple[str, int]]
) -> None:
    region = Region("gpu", capacity)
    expected: dict[str, int] = {}
    for step in steps:
        after = {holder: n for holder, n in {**expected, **dict([step])}.items() if n}
        if sum(after.values()) > capacity:
            with pytest.raises(OutOfMemory):
                region.hold(*step)
        else:
            region.hold(*step)
            expected = after
        assert region.held == expected
        assert sum(expected.values()) == capacity - region.free_bytes
