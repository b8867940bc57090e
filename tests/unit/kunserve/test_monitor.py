"""Drops are due one second ahead, restores when they will last, and neither flaps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from systems.kunserve.artifact import ArtifactConfig, drop_due, restore_due
from systems.kunserve.monitor import (
    Monitor,
    MonitorConfig,
    Sample,
    queued_blocks,
    required_bytes,
)
from systems.serving.load import Load
from tests.examples import examples

CONFIG = MonitorConfig(horizon_s=1.0, window_s=2.0, restore_share=0.7, calm_s=5.0, queue="all")
GOOD_CODE = {
    "drop_usage": 0.95, "restore_usage": 0.5, "falling_samples": 30, "group_size": 2, "victims": 8,
    "whole_tokens": 131_072, "chunk_tokens": 4096,
}  # fmt: skip
CODE = ArtifactConfig(**GOOD_CODE)  # type: ignore[arg-type]


def load(total: int, free: int, pending: int) -> Load:
    return Load("a", total, total - free, 1, int(pending > 0), pending, pending)


def decisions(
    demand: list[float], capacity: float = 100, restored: int | None = None, step_s: float = 0.5
) -> list[str | None]:
    monitor = Monitor(CONFIG)
    return [
        monitor.observe(Sample(k * step_s, round(value), round(capacity)), restored)
        for k, value in enumerate(demand)
    ]


def test_a_drop_is_due_one_second_before_demand_exceeds_memory() -> None:
    """10 a second: at 90 the limit of 100 is a second away."""
    demand = [60.0 + 5 * k for k in range(7)]  # 60 … 90, each half second
    assert decisions(demand) == [None] * 6 + ["drop"]


def test_demand_that_does_not_grow_causes_no_drop() -> None:
    assert decisions([99] * 10) == [None] * 10
    assert decisions([100] * 2) == ["drop"] * 2  # but what fills the memory does


def test_memory_that_shrinks_causes_one_too() -> None:
    """§4.3's second rate: of "available HBM"."""
    monitor = Monitor(CONFIG)
    found = [monitor.observe(Sample(k / 2, 80, 110 - 5 * k)) for k in range(6)]
    assert found == [None] * 4 + ["drop"] * 2  # 90 now, 10 a second less
    assert monitor.shortage_bytes() == pytest.approx(80 - (85 - 10))


def test_two_samples_at_once_are_no_trend() -> None:
    """The first request of a quiet instance: 30 in a tenth of a second, of 100."""
    assert decisions([0, 30, 30], step_s=0.1) == [None] * 3


def test_the_step_of_a_drop_is_no_rate() -> None:
    monitor = Monitor(CONFIG)
    for k in range(3):
        monitor.observe(Sample(k / 2, 90 + 4 * k, 100))
    monitor.reset()
    monitor.observe(Sample(2, 100, 150))
    assert monitor.shortage_bytes() == -50


def test_a_restore_waits_for_calm_and_room() -> None:
    assert decisions([60] * 12, 150, restored=100) == [None] * 10 + ["restore"] * 2
    assert decisions([71] * 30, 150, restored=100) == [None] * 30  # above 0.7 of what remains
    assert decisions([60] * 12, 150) == [None] * 12  # nothing to restore
    decoding = [40 + k / 2 for k in range(30)]  # requests that decode take a little more each time
    assert "restore" in decisions(decoding, 150, restored=100)
    growing = [60 + 6.0 * k for k in range(12)]  # 12 a second: above 70 within one
    assert "restore" not in decisions(growing, 150, restored=100)


def test_demand_that_grows_is_not_calm_though_it_would_fit_today() -> None:
    """After five seconds it is at 66 of 70, and above 70 one second later."""
    growing = [44 + 2.2 * k for k in range(11)]  # 4.4 a second
    assert decisions(growing, 150, restored=100) == [None] * 11
    assert decisions([44 + 2.0 * k for k in range(11)], 150, restored=100)[-1] == "restore"


def test_spare_memory_of_one_group_is_no_help_to_another() -> None:
    assert required_bytes([30.4, -100, 5]) == 31 + 6
    assert required_bytes([-0.5, -100]) == 0


def test_demand_counts_the_whole_queue_or_the_head_of_the_line() -> None:
    queue = Load("a", 100, 60, 2, 3, 21, 5)
    assert queued_blocks(queue, "all") == queued_blocks(queue, "plan") == 21
    assert queued_blocks(queue, "first") == 5
    assert queued_blocks(Load("a", 100, 40, 1), "first") == 0


def test_what_only_a_plan_counts_triggers_nothing_and_is_planned_for() -> None:
    """§4.3 by its letter: KV in use triggers; §4.1: the drop then holds the queued requests."""
    monitor = Monitor(CONFIG)
    assert monitor.observe(Sample(0, 150, 100, planned_bytes=60)) is None
    assert monitor.observe(Sample(2, 160, 100, planned_bytes=60)) == "drop"  # 100 in use
    assert monitor.shortage_bytes() == 160 + 5 - 100


def test_a_drop_that_is_due_requires_something() -> None:
    monitor = Monitor(CONFIG)
    assert monitor.observe(Sample(0, 100, 100)) == "drop"
    assert required_bytes([monitor.shortage_bytes()]) >= 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"horizon_s": 0}, "horizon_s=0 must be above 0"),
        ({"restore_share": 1.0}, "restore_share=1.0 must be between 0 and 1"),
        ({"calm_s": -1}, "calm_s=-1 must be at least 0"),
        ({"queue": "last"}, "queue=last is unknown; valid: all, first, plan"),
    ],
)
def test_bad_thresholds_are_told(changes: dict[str, object], words: str) -> None:
    good = {"horizon_s": 1.0, "window_s": 2.0, "restore_share": 0.7, "calm_s": 5.0, "queue": "all"}
    with pytest.raises(ValueError, match=words):
        MonitorConfig(**(good | changes))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be in this order"):
        ArtifactConfig(**(GOOD_CODE | {"drop_usage": 0.4}))  # type: ignore[arg-type]


def switches(
    demand: list[int], small: int, large: int, config: MonitorConfig
) -> list[tuple[float, str]]:
    """What a group does that drops and restores at once: its times, and which."""
    monitor, dropped, found = Monitor(config), False, []
    for k, value in enumerate(demand):
        sample = Sample(k * 0.5, value, large if dropped else small)
        decision = monitor.observe(sample, small if dropped else None)
        if decision == ("restore" if dropped else "drop"):
            found.append((sample.time_s, decision))
            dropped = not dropped
            monitor.reset()
    return found


@examples(200)
@given(
    seed=st.integers(0, 2**32 - 1),
    large=st.integers(110, 300),
    noise=st.integers(0, 40),
    level=st.integers(0, 150),
)
def test_no_flapping(seed: int, large: int, noise: int, level: int) -> None:
    """Whatever demand does, a restore comes calm_s after a drop at the earliest. Demand that stays
    within a band narrower than what a restore leaves free never makes a drop of a restore."""
    demand = np.random.default_rng(seed).integers(level, level + noise + 1, 400).tolist()
    found = switches(demand, 100, large, CONFIG)
    assert [kind for _, kind in found] == ["drop", "restore"] * (len(found) // 2) + ["drop"] * (
        len(found) % 2
    )
    times = [time for time, _ in found]
    for k in range(1, len(found), 2):
        assert times[k] - times[k - 1] >= CONFIG.calm_s
    # A band of `noise` moves by twice as much a second at the most, two samples apart.
    if level + noise + 2 * noise < 100 or level > 100 * CONFIG.restore_share:
        assert len(found) <= 1


@settings(deadline=None)
@given(level=st.integers(0, 200), large=st.integers(110, 300))
def test_constant_demand_switches_once_at_most(level: int, large: int) -> None:
    assert len(switches([level] * 200, 100, large, CONFIG)) <= 1


def test_the_codes_drop_is_by_one_vote() -> None:
    calm, full = load(100, 60, 0), load(100, 5, 5)
    assert drop_due([calm, full], CODE)
    assert not drop_due([calm, load(100, 5, 4)], CODE)  # what is queued fits
    assert not drop_due([calm, load(100, 6, 50)], CODE)  # 94 %


def test_the_codes_restore_is_of_all_and_while_the_load_falls() -> None:
    calm, falling = load(100, 50, 0), [2.0] * 15 + [1.0] * 15
    assert restore_due([calm, calm], falling, CODE)
    assert not restore_due([calm, load(100, 49, 0)], falling, CODE)
    assert not restore_due([calm, load(100, 60, 1)], falling, CODE)
    assert not restore_due([calm], falling[::-1], CODE)
    assert not restore_due([calm], [1.0] * 30, CODE)
    assert not restore_due([calm], falling[1:], CODE)  # 29 samples


@settings(deadline=None)
@given(used=st.integers(0, 1000), freed=st.integers(1, 899), pending=st.integers(0, 500))
def test_the_codes_thresholds_do_not_flap_while_a_drop_frees_under_nine_tenths(
    used: int, freed: int, pending: int
) -> None:
    """Half of the larger memory must not be 95 % of the smaller one: a drop must add less than
    0.9 of the KV memory. Groups of two of 14B on 80 GB add 0.32 of it, groups of four of 90B on
    four times 80 GB 0.98."""
    large, small = load(1000 + freed, 1000 + freed - used, 0), 1000
    if restore_due([large], [2.0] * 15 + [1.0] * 15, CODE):
        assert not drop_due([load(small, small - used, pending)], CODE)


def test_the_codes_thresholds_flap_where_a_drop_frees_more() -> None:
    assert restore_due([load(2000, 1000, 0)], [2.0] * 15 + [1.0] * 15, CODE)
    assert drop_due([load(1000, 0, 0)], CODE)
