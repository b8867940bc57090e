"""How many instances (§5.3), on numbers computed by hand, and that nothing swings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.configuration.config import settings
from harness.configuration.options import plain
from harness.errors import UsageError
from harness.placement import profile_of
from systems.blitzscale import artifact
from systems.blitzscale.artifact import Constants, InFlight, Observed
from systems.blitzscale.demand import PaperPolicy, Seen
from systems.blitzscale.monitor import Load, Monitor
from systems.blitzscale.policy import (
    Below,
    Bounds,
    Capacity,
    Range,
    capacity_of,
    prefill_demand_per_s,
    wanted,
)
from systems.blitzscale.system import BlitzScale
from tests.running import composed, hardware_profile, model_spec

BOUNDS = Bounds(0.5, 0.7)
CODE = Constants(  # eval_e2e_*_tp1: Llama3-8B
    max_blocks=30_000,
    prefill_tokens_per_s=15_000,
    transfer_tokens_per_s=96_000,
    prefill=Bounds(0.5, 0.7),
    decode=Bounds(0.75, 0.95),
    migration=Bounds(0.4, 0.8),
)
SLOTS = Range(2, 14)


def test_the_monitor_averages_over_its_window() -> None:
    monitor = Monitor(0.5)
    for at_s, tokens in ((0.0, 1000), (0.2, 2000), (0.5, 3000)):
        monitor.arrived(at_s, tokens)
    load = monitor.load(0.5, queued_tokens=400, kv_tokens=7)
    assert load == Load(prompt_tokens_per_s=10_000, queued_tokens=400, kv_tokens=7)
    assert monitor.load(0.9, queued_tokens=0, kv_tokens=0).prompt_tokens_per_s == 6000
    assert monitor.load(1.0, queued_tokens=0, kv_tokens=0).prompt_tokens_per_s == 0


def test_demand_is_what_arrives_or_the_queue_to_be_cleared() -> None:
    load = Load(prompt_tokens_per_s=10_000, queued_tokens=8_000, kv_tokens=0)
    assert prefill_demand_per_s(load, drain_s=1.0) == 10_000, "what waits has arrived just now"
    assert prefill_demand_per_s(load, drain_s=0.5) == 16_000


@pytest.mark.parametrize(
    ("demand", "running", "below", "expected"),
    [
        pytest.param(14_000, 1, False, 2, id="14 over 0.7 x 10 is two exactly"),
        pytest.param(14_001, 2, False, 3, id="a token more is three"),
        pytest.param(60_000, 2, False, 9, id="60 over 7, at once"),
        pytest.param(14_000, 2, True, 2, id="at the bound nobody goes"),
        pytest.param(3_000, 4, False, 4, id="low, not for long enough"),
        pytest.param(3_000, 4, True, 1, id="low for the timeout"),
        pytest.param(10_000, 4, True, 2, id="down to what is enough"),
        pytest.param(0, 3, True, 0, id="nothing: the range says how many stay"),
    ],
)
def test_instances_for_a_demand(demand: float, running: int, below: bool, expected: int) -> None:
    assert wanted(demand, 10_000, BOUNDS, running, below=below) == expected


def test_a_share_without_an_exact_float_is_no_instance_more() -> None:
    assert 7420 / (0.7 * 5300) > 2
    assert wanted(7420, 5300, BOUNDS, 1, below=False) == 2


def test_a_load_is_low_after_the_timeout_and_anew_after_a_peak() -> None:
    below = Below(0.333)
    args = (10_000, BOUNDS, 2)
    assert not below.after(0.0, 9_999, *args)
    assert not below.after(0.3, 9_999, *args)
    assert below.after(0.34, 9_999, *args)
    assert not below.after(0.35, 10_000, *args)  # a load of 0.5 is not below it
    assert not below.after(0.36, 9_999, *args)


@given(
    demand=st.floats(0, 1e6),
    lower=st.floats(0.01, 0.98),
    gap=st.floats(0.01, 0.9),
    running=st.integers(1, 40),
)
def test_a_constant_load_moves_the_number_once_at_most(
    demand: float, lower: float, gap: float, running: int
) -> None:
    bounds = Bounds(lower, min(1.0, lower + gap))
    first = wanted(demand, 10_000, bounds, running, below=True)
    for _ in range(3):
        assert wanted(demand, 10_000, bounds, first, below=True) == first


def test_a_prefills_capacity_comes_from_the_profile() -> None:
    """The artifact's constants are 15,000, 12,000 and 5,300 tokens/s for 8B, 24B and 72B."""
    profile, spec = profile_of(hardware_profile("a800x32")), model_spec("llama2-7b")
    found = capacity_of(profile, spec, batch_tokens=2000, kv_tokens=100_000)
    assert found.prefill_tokens_per_s == 2000 / profile.prefill_s(spec, 2000)
    assert found.kv_tokens == 100_000


@pytest.mark.parametrize(("lower", "upper"), [(0.7, 0.5), (0.5, 0.5), (0.0, 0.5), (0.5, 1.1)])
def test_crossed_bounds_are_told(lower: float, upper: float) -> None:
    with pytest.raises(UsageError, match=f"lower={lower}, upper={upper} must be"):
        Bounds(lower, upper)


def test_other_bad_numbers_are_told() -> None:
    with pytest.raises(UsageError, match="least=3, most=2"):
        Range(3, 2)
    with pytest.raises(UsageError, match="window_s=0 must be above 0"):
        Monitor(0)
    with pytest.raises(UsageError, match="timeout_s=-1 must be at least 0"):
        Below(-1)


def seen(**changes: int) -> Observed:
    numbers = dict.fromkeys(("used_blocks", "prefill_tokens", "queued_tokens"), 0)
    return Observed(**{"prefills": 4, "decodes": 4, **numbers, **changes})


@pytest.mark.parametrize(
    ("changes", "prefills", "decodes"),
    [
        # 60,000 / 0.7 / 15,000 = 5.7: 6 > 4; 60,000 / 0.5 / 15,000 = 8; (6 + 8 + 1) // 2 = 7
        pytest.param({"queued_tokens": 60_000, "used_blocks": 100_000}, 7, 4, id="backlog"),
        # 150,000 / 0.95 / 30,000 = 5.3: 6; / 0.75: 6.7: 7; (6 + 7 + 1) // 2 = 7
        pytest.param({"queued_tokens": 35_000, "used_blocks": 150_000}, 4, 7, id="memory"),
        # 35,000 / 0.5 / 15,000 = 4.7: 5 >= 4 and 35,000 / 0.7 / 15,000 = 3.3: 4 <= 4
        pytest.param({"queued_tokens": 35_000, "used_blocks": 100_000}, 4, 4, id="between"),
        # 2,000,000 / 0.8 / 384,000 = 6.5: 7; / 0.4: 13.02: 14; decodes (7 + 14 + 1) // 2 = 11.
        # Prefills: both are 7 by the slip, (7 + 7 + 1) // 2 = 7, and not 11.
        pytest.param({"prefill_tokens": 2_000_000}, 7, 11, id="transfer"),
        pytest.param({}, 3, 3, id="idle: one fewer"),
        pytest.param({"prefills": 2, "decodes": 2}, 2, 2, id="the least there may be"),
        pytest.param({"queued_tokens": 10**6}, 14, 3, id="the most there may be"),
    ],
)
def test_the_artifacts_numbers(changes: dict[str, int], prefills: int, decodes: int) -> None:
    assert artifact.wanted(seen(**changes), CODE, SLOTS, SLOTS) == (prefills, decodes)


def test_the_artifacts_pair_has_four_batches_under_way_and_one_fewer_each_200_ms() -> None:
    in_flight = InFlight(most=4, least=2, step_s=0.2)
    assert [in_flight.after(at_s) for at_s in (0, 0.19, 0.2, 0.4, 9)] == [4, 4, 3, 2, 2]


def test_the_artifact_needs_a_decode_to_send_to() -> None:
    with pytest.raises(ValueError, match="no decode instance"):
        artifact.wanted(seen(decodes=0), CODE, SLOTS, SLOTS)


@given(
    used_blocks=st.integers(0, 400_000),
    queued_tokens=st.integers(0, 200_000),
    prefill_tokens=st.integers(0, 5_000_000),
    prefills=st.integers(2, 14),
    decodes=st.integers(2, 14),
)
def test_the_artifact_comes_to_rest_at_a_constant_load(
    used_blocks: int, queued_tokens: int, prefill_tokens: int, prefills: int, decodes: int
) -> None:
    counts = (prefills, decodes)
    history = []
    for _ in range(40):
        now = seen(
            used_blocks=used_blocks,
            queued_tokens=queued_tokens,
            prefill_tokens=prefill_tokens,
            prefills=counts[0],
            decodes=counts[1],
        )
        counts = artifact.wanted(now, CODE, SLOTS, SLOTS)
        history.append(counts)
    assert len(set(history[-20:])) == 1


def paper_policy(transfer_tokens_per_s: float) -> PaperPolicy:
    config = settings(plain(composed("+system=blitzscale").system), BlitzScale, "system")
    capacity = Capacity(prefill_tokens_per_s=15_000, kv_tokens=1_000_000)
    return PaperPolicy(config, capacity, SLOTS, SLOTS, transfer_tokens_per_s)


def test_kv_comes_no_faster_than_prefills_make_it() -> None:
    """12 x 15,000 of the 300,000 tokens/s that arrive: 180,000 / (0.8 x 96,000) = 2.3."""
    assert paper_policy(96_000).wanted(seen_by_paper(0, 300_000, 0, 1))[1] == 3


def test_no_decode_is_added_for_kv_that_prefills_cannot_send() -> None:
    """A prefill makes 15,000 tokens/s and its NICs send 8,000: more decodes would wait, too."""
    for prefills in (2, 3):
        seen = seen_by_paper(0, 60_000, 50_000, 1, prefills=prefills)
        assert paper_policy(8_000).wanted(seen)[1] == prefills


def seen_by_paper(
    now_s: float, arriving: float, moving: int, decodes: int, prefills: int = 12
) -> Seen:
    load = Load(prompt_tokens_per_s=arriving, queued_tokens=0, kv_tokens=100_000)
    return Seen(
        now_s=now_s, load=load, prefills=prefills, sending=prefills, decodes=decodes,
        loading=(False, False),
        leaving_tokens=0, moving_tokens=moving,
    )  # fmt: skip


def test_decodes_grow_where_their_nics_are_full_though_their_kv_has_room() -> None:
    """100 Gbps bring 96,000 tokens/s of 8B's KV. 105,000 arrive and 125,000 wait, to be cleared in
    a second: 230,000 / (0.8 x 96,000) = 2.99."""
    assert paper_policy(96_000).wanted(seen_by_paper(0, 105_000, 125_000, 2)) == (12, 3)
    assert paper_policy(1e9).wanted(seen_by_paper(0, 105_000, 125_000, 2)) == (12, 2)


def test_they_stay_until_the_network_is_idle_too() -> None:
    """0.4 x 96,000 x 4 = 153,600 tokens/s are the lower bound of four."""
    for arriving, expected in ((160_000.0, 4), (100_000.0, 2)):
        policy = paper_policy(96_000)
        assert policy.wanted(seen_by_paper(0.0, arriving, 0, 4))[1] == 4
        assert policy.wanted(seen_by_paper(0.6, arriving, 0, 4))[1] == expected
