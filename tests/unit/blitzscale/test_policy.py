"""How many instances (§5.3), on numbers computed by hand, and that nothing swings."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.configuration.config import settings
from harness.configuration.options import plain
from harness.errors import UsageError
from systems.blitzscale.config import Bounds, Config, InFlight, Range
from systems.blitzscale.instances import Role
from systems.blitzscale.policy import ArtifactPolicy, Capacity, Monitor, PaperPolicy, Resource, Seen
from systems.blitzscale.system import BlitzScale
from tests.running import composed

BOUNDS = Bounds(0.5, 0.7)
CODE = Capacity(  # eval_e2e_*_tp1: Llama3-8B; its KV in blocks
    prefill_tokens_per_s=15_000, kv_tokens=30_000, transfer_tokens_per_s=96_000, block_tokens=1
)
SLOTS = {Role.PREFILL: Range(2, 14), Role.DECODE: Range(2, 14)}


@cache
def configured(*overrides: str) -> Config:
    found: Config = settings(
        plain(composed("+system=blitzscale", *overrides).system), BlitzScale, "system"
    )
    return found


def seen(**numbers: float) -> Seen:
    """Four prefills and four decodes that have nothing to do, but for `numbers`."""
    idle: dict[str, Any] = {
        "now_s": 0.0, "prompt_tokens_per_s": 0.0, "queued_tokens": 0, "kv_tokens": 0,
        "prefills": 4, "sending": 4, "decodes": 4, "loading": (False, False),
        "leaving_tokens": 0, "moving_tokens": 0,
    }  # fmt: skip
    return Seen(**idle | numbers)


def test_the_monitor_averages_over_its_window() -> None:
    monitor = Monitor(0.5)
    for at_s, tokens in ((0.0, 1000), (0.2, 2000), (0.5, 3000)):
        monitor.arrived(at_s, tokens)
    assert [monitor.tokens_per_s(now_s) for now_s in (0.5, 0.9, 1.0)] == [10_000, 6000, 0]


def test_demand_is_what_arrives_or_the_queue_to_be_cleared() -> None:
    now = seen(prompt_tokens_per_s=10_000, queued_tokens=8_000)
    assert now.prefill_demand_per_s(drain_s=1.0) == 10_000, "what waits has arrived just now"
    assert now.prefill_demand_per_s(drain_s=0.5) == 16_000


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
    found = Resource(10_000, BOUNDS, timeout_s=0.0 if below else 1.0)
    assert found.wanted(0.0, demand, running) == expected


def test_a_share_without_an_exact_float_is_no_instance_more() -> None:
    assert 7420 / (0.7 * 5300) > 2
    assert Resource(5300, BOUNDS, 1.0).wanted(0.0, 7420, 1) == 2


def test_a_load_is_low_after_the_timeout_and_anew_after_a_peak() -> None:
    compute = Resource(10_000, BOUNDS, 0.333)
    stay, one_fewer = 4, 3
    for now_s, demand, expected in (
        (0.0, 19_999, stay),
        (0.3, 19_999, stay),
        (0.34, 19_999, one_fewer),
        (0.35, 20_000, stay),  # a load of 0.5 is not below it
        (0.36, 19_999, stay),
    ):
        assert compute.wanted(now_s, demand, 4) == expected
    assert compute.wanted(0.7, 19_999, 4, loading=True) == stay, "the timeout begins afterwards"
    assert compute.wanted(0.8, 19_999, 4) == stay


@given(
    demand=st.floats(0, 1e6),
    lower=st.floats(0.01, 0.98),
    gap=st.floats(0.01, 0.9),
    running=st.integers(1, 40),
)
def test_a_constant_load_moves_the_number_once_at_most(
    demand: float, lower: float, gap: float, running: int
) -> None:
    compute = Resource(10_000, Bounds(lower, min(1.0, lower + gap)), timeout_s=0.0)
    first = compute.wanted(0.0, demand, running)
    for _ in range(3):
        assert compute.wanted(0.0, demand, first) == first


@pytest.mark.parametrize(("lower", "upper"), [(0.7, 0.5), (0.5, 0.5), (0.0, 0.5), (0.5, 1.1)])
def test_crossed_bounds_are_told(lower: float, upper: float) -> None:
    with pytest.raises(UsageError, match=f"lower={lower}, upper={upper} must be"):
        Bounds(lower, upper)


def test_other_bad_numbers_are_told() -> None:
    with pytest.raises(UsageError, match="least=3, most=2"):
        Range(3, 2)
    with pytest.raises(UsageError, match=r"window_s=0 must be above 0"):
        configured("system.window_s=0")
    with pytest.raises(UsageError, match=r"timeout_s=-1 must be at least 0"):
        configured("system.variants.paper.timeout_s=-1")


def artifact_policy() -> ArtifactPolicy:
    return ArtifactPolicy(configured("system.variant=artifact"), CODE, SLOTS)


@pytest.mark.parametrize(
    ("changes", "prefills", "decodes"),
    [
        # 60,000 / 0.7 / 15,000 = 5.7: 6 > 4; 60,000 / 0.5 / 15,000 = 8; (6 + 8 + 1) // 2 = 7
        pytest.param({"queued_tokens": 60_000, "kv_tokens": 100_000}, 7, 4, id="backlog"),
        # 150,000 / 0.95 / 30,000 = 5.3: 6; / 0.75: 6.7: 7; (6 + 7 + 1) // 2 = 7
        pytest.param({"queued_tokens": 35_000, "kv_tokens": 150_000}, 4, 7, id="memory"),
        # 35,000 / 0.5 / 15,000 = 4.7: 5 >= 4 and 35,000 / 0.7 / 15,000 = 3.3: 4 <= 4
        pytest.param({"queued_tokens": 35_000, "kv_tokens": 100_000}, 4, 4, id="between"),
        # 2,000,000 / 0.8 / 384,000 = 6.5: 7; / 0.4: 13.02: 14; decodes (7 + 14 + 1) // 2 = 11.
        # Prefills: both are 7 by the slip, (7 + 7 + 1) // 2 = 7, and not 11.
        pytest.param({"leaving_tokens": 2_000_000}, 7, 11, id="transfer"),
        pytest.param({}, 3, 3, id="idle: one fewer"),
        pytest.param({"prefills": 2, "decodes": 2}, 2, 2, id="the least there may be"),
        pytest.param({"queued_tokens": 10**6}, 14, 3, id="the most there may be"),
    ],
)
def test_the_artifacts_numbers(changes: dict[str, int], prefills: int, decodes: int) -> None:
    assert artifact_policy().wanted(seen(now_s=1.0, **changes)) == (prefills, decodes)


def test_the_artifacts_pair_has_four_batches_under_way_and_one_fewer_each_200_ms() -> None:
    in_flight = InFlight(most=4, least=2, step_s=0.2)
    assert [in_flight.after(at_s) for at_s in (0, 0.19, 0.2, 0.4, 9)] == [4, 4, 3, 2, 2]


def test_the_artifact_counts_one_decode_to_send_to_if_there_is_none() -> None:
    """400,000 tokens into one: 400,000 / 0.8 / 96,000 = 5.2: 6; / 0.4: 10.4: 11; (6 + 11 + 1) // 2
    = 9."""
    for decodes in (0, 1):
        policy = artifact_policy()
        assert policy.wanted(seen(decodes=decodes, leaving_tokens=400_000))[1] == 9


def test_the_artifact_scales_down_once_a_timeout() -> None:
    policy = artifact_policy()
    assert policy.wanted(seen(now_s=0.3)) == (4, 4)
    assert policy.wanted(seen(now_s=0.4)) == (3, 3)
    assert policy.wanted(seen(now_s=0.6, prefills=3, decodes=3)) == (3, 3)


@given(
    kv_tokens=st.integers(0, 400_000),
    queued_tokens=st.integers(0, 200_000),
    leaving_tokens=st.integers(0, 5_000_000),
    prefills=st.integers(2, 14),
    decodes=st.integers(2, 14),
)
def test_the_artifact_comes_to_rest_at_a_constant_load(
    kv_tokens: int, queued_tokens: int, leaving_tokens: int, prefills: int, decodes: int
) -> None:
    policy, counts = artifact_policy(), (prefills, decodes)
    history = []
    for step in range(40):
        now = seen(
            now_s=step,
            kv_tokens=kv_tokens,
            queued_tokens=queued_tokens,
            leaving_tokens=leaving_tokens,
            prefills=counts[0],
            decodes=counts[1],
        )
        counts = policy.wanted(now)
        history.append(counts)
    assert len(set(history[-20:])) == 1


def paper_policy(transfer_tokens_per_s: float) -> PaperPolicy:
    capacity = Capacity(
        prefill_tokens_per_s=15_000,
        kv_tokens=1_000_000,
        transfer_tokens_per_s=transfer_tokens_per_s,
        block_tokens=64,
    )
    return PaperPolicy(configured(), capacity, SLOTS)


def test_kv_comes_no_faster_than_prefills_make_it() -> None:
    """12 x 15,000 of the 300,000 tokens/s that arrive: 180,000 / (0.8 x 96,000) = 2.3."""
    assert paper_policy(96_000).wanted(seen_by_paper(0, 300_000, 0, 1))[1] == 3


def test_no_decode_is_added_for_kv_that_prefills_cannot_send() -> None:
    """A prefill makes 15,000 tokens/s and its NICs send 8,000: more decodes would wait, too."""
    for prefills in (2, 3):
        now = seen_by_paper(0, 60_000, 50_000, 1, prefills=prefills)
        assert paper_policy(8_000).wanted(now)[1] == prefills


def seen_by_paper(
    now_s: float, arriving: float, moving: int, decodes: int, prefills: int = 12
) -> Seen:
    return seen(
        now_s=now_s, prompt_tokens_per_s=arriving, kv_tokens=100_000, prefills=prefills,
        sending=prefills, decodes=decodes, moving_tokens=moving,
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
