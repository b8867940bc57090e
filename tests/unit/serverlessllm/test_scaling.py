"""ServerlessLLM's auto-scaling decisions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from systems.serverlessllm.paper import Slot, cheapest, desired_instances


@pytest.mark.parametrize(
    ("num_requests", "wanted"), [(0, 0), (1, 1), (4, 1), (5, 2), (40, 10), (99, 10)]
)
def test_instances_for_all_requests_up_to_the_limit(num_requests: int, wanted: int) -> None:
    assert desired_instances(num_requests, concurrency=4, max_instances=10) == wanted


def test_a_device_near_the_weights_is_worth_waiting_for() -> None:
    from_ssd = Slot(free_s=0.0, last_used_s=0.0, load_s=4.0)
    from_memory = Slot(free_s=12.0, last_used_s=9.0, load_s=0.5)
    assert cheapest([from_ssd, from_memory], now_s=10.0) == 1
    assert cheapest([from_ssd, from_memory], now_s=8.0) == 0


def test_equal_latencies_take_the_least_recently_used() -> None:
    assert cheapest([Slot(0, 5.0, 1.0), Slot(0, 2.0, 1.0), Slot(0, 2.0, 1.0)], now_s=9.0) == 1


def test_no_device_where_all_are_busy() -> None:
    assert cheapest([], now_s=3.0) is None


@given(st.lists(st.builds(Slot, st.floats(0, 20), st.floats(0, 10), st.floats(0, 5)), max_size=6))
def test_no_other_device_would_start_earlier(slots: list[Slot]) -> None:
    chosen = cheapest(slots, now_s=10.0)
    starts_s = [max(slot.free_s, 10.0) + slot.load_s for slot in slots]
    if chosen is None:
        assert not starts_s
    else:
        assert max(slots[chosen].free_s, 10.0) + slots[chosen].load_s <= min(starts_s) + 1e-9
