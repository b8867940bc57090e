from __future__ import annotations

import pytest

from harness.engine.clock_offset import NUM_EXCHANGES, ClockOffset


def test_the_quickest_of_the_latest_exchanges_counts() -> None:
    clock = ClockOffset()
    clock.add(10.0, 110.5, 11.0)
    assert (clock.offset_s, clock.error_s) == (100.0, 0.5)
    clock.add(20.0, 120.35, 20.1)
    assert clock.offset_s == pytest.approx(100.3)
    assert clock.error_s == pytest.approx(0.05)
    for _ in range(NUM_EXCHANGES):  # the clock has drifted
        clock.add(30.0, 131.1, 30.2)
    assert clock.offset_s == pytest.approx(101.0)


def test_a_clock_that_cannot_be_told_from_ours_is_ours_and_may_be_off_by_what_was_measured() -> (
    None
):
    clock = ClockOffset()
    clock.add(1.0, 1.0009, 1.001)
    assert clock.offset_s == 0.0
    assert clock.error_s == pytest.approx(0.9e-3)  # it may be 0.9 ms ahead
    clock = ClockOffset()
    clock.add(0.0, 1.4e-3, 1e-3)  # 0.4 ms ahead or more
    assert clock.offset_s == pytest.approx(0.9e-3)


def test_the_stated_error_is_the_worst_of_all_that_were_used() -> None:
    clock = ClockOffset()
    for round_trip_s in (1.0, *[0.1] * (NUM_EXCHANGES - 1)):  # the first is not used
        clock.add(0.0, 100.0 + round_trip_s / 2, round_trip_s)
    assert clock.error_s == pytest.approx(0.05)
    assert ClockOffset(0.3).error_s == 0.3
    again = ClockOffset(0.1)  # its worker has restarted
    for round_trip_s in (1.0, *[0.05] * NUM_EXCHANGES):
        again.add(0.0, 100.0 + round_trip_s / 2, round_trip_s)
    assert again.error_s == pytest.approx(0.1)
    for round_trip_s in (*[0.4] * NUM_EXCHANGES, *[0.1] * NUM_EXCHANGES):
        clock.add(0.0, 100.0 + round_trip_s / 2, round_trip_s)
    assert clock.error_s == pytest.approx(0.2)
