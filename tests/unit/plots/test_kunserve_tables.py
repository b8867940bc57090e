"""KunServe's figures, from rows that can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from plots.kunserve.rates import arithmetic, over_best
from plots.kunserve.regime import beside_bound, why_late
from plots.kunserve.runs import LATENCIES, compared
from plots.kunserve.spikes import spike
from plots.kunserve.tables import PUBLISHED, ROWS, SYNTHETIC, agieval_cot, kv, model
from plots.kunserve.timeline import throttled_s
from plots.kunserve.variants import beside
from plots.runs import held


def test_tokens_are_held_from_the_first_token_on_and_queued_before() -> None:
    found = pd.DataFrame(
        {
            "arrival_s": [0.0, 1.0], "first_s": [2.0, 1.5], "last_s": [4.0, 1.5],
            "prompt_tokens": [100, 10],
            "token_times_s": [np.array([2.0, 3.0, 4.0]), np.array([1.5])],
        }
    )  # fmt: skip
    running, queued = held(found, np.arange(0.0, 5.0).astype(np.float64))
    assert queued.tolist() == [100, 110, 0, 0, 0]
    assert running.tolist() == [0, 0, 101, 102, 0]  # the one-token answer lies between two looks


def test_systems_are_compared_at_one_rate_and_seed() -> None:
    rows = pd.DataFrame(
        [
            {"experiment": "e", "system": system, "rate": rate, "seed": 0, "ttft_p99_s": p99,
             "violating": violating, "tokens_per_s": 10.0, "requests_per_s": 3 * rate,
             "load": 0.25 * rate, **dict.fromkeys(("ttft_p50_s", "tbt_p50_s", "tbt_p99_s"), p99)}
            for system, rate, p99, violating in (
                ("kunserve", 1.0, 2.0, 0.0), ("kunserve", 2.0, 3.0, 0.1),
                ("llumnix_replication", 1.0, 2.0, 0.0), ("llumnix_replication", 2.0, 12.0, 0.4),
                ("llumnix_migration", 2.0, 24.0, 0.5),
            )
        ]
    ).assign(slow=0.0, wait_memory=lambda rows: 0.4 * rows.rate)  # fmt: skip
    found = compared(rows).set_index(["system", "rate"])
    assert found.ttft_p99_over_kunserve["llumnix_replication", 2.0] == pytest.approx(4.0)
    assert found.ttft_p99_of_llumnix_replication["kunserve", 2.0] == pytest.approx(4.0)
    assert np.isnan(found.ttft_p99_of_llumnix_replication["llumnix_replication", 2.0])
    assert found.tbt_p50_added["kunserve", 2.0] == pytest.approx(-0.75)
    assert found.removed_share["kunserve", 2.0] == pytest.approx(0.75)
    assert found.ttft_p99_over_modest["llumnix_replication", 2.0] == pytest.approx(6.0)
    assert found.ttft_p99_over_worst["llumnix_migration", 2.0] == pytest.approx(2.0)
    assert found.mean_rate["kunserve", 2.0] == 6.0
    assert found.throttled_ttft_p99_of_llumnix_replication["kunserve", 2.0] == pytest.approx(4.0)
    assert np.isnan(found.throttled_ttft_p99_of_llumnix_replication["kunserve", 1.0])


def test_the_pressed_rate_has_the_papers_load_whoever_gains_there() -> None:
    rows = pd.DataFrame(
        [
            {"experiment": experiment, "system": system, "rate": rate, "seed": seed, "load": load,
             "requests_per_s": rate, "tokens_per_s": 1.0, "violating": 0.5, "slow": 0.0,
             "wait_memory": 0.0,
             **{f"{number}_s": 1.0 for number in LATENCIES}}
            for system in ("kunserve", "llumnix_replication")
            for seed in (0, 1)
            for experiment, rate, load in (
                ("e", 1.0, 0.1), ("e", 2.0, 0.45 + 0.1 * seed), ("e", 3.0, 0.7), ("f", 1.0, 0.2),
            )
        ]
    )  # fmt: skip
    found = compared(rows)
    pressed = found[found.pressed][["experiment", "rate"]].drop_duplicates()
    assert pressed.to_numpy().tolist() == [["e", 2.0], ["f", 1.0]]


def test_a_spike_is_ttft_after_throttling_over_before() -> None:
    shown = pd.DataFrame(
        {"time_s": [0.0, 1.0, 2.0, 3.0], "demand": [0.5, 0.5, 1.0, 0.2],
         "ttft_s": [1.0, 3.0, 4.0, 20.0]}
    )  # fmt: skip
    assert throttled_s(shown) == 2.0
    assert spike(shown)["spike"] == pytest.approx(10.0)
    never = spike(shown.assign(demand=0.1))
    assert np.isnan(never["spike"])  # type: ignore[call-overload]


def test_synthetic_lengths_are_those_carried_and_have_table_2s_numbers() -> None:
    made = agieval_cot()
    pd.testing.assert_frame_equal(made, pd.read_csv(SYNTHETIC))
    for column, side in (("ContextTokens", "in"), ("GeneratedTokens", "out")):
        mean, *quantiles = PUBLISHED["agieval_cot", side]
        assert made[column].mean() == pytest.approx(mean, rel=0.005)
        assert made[column].quantile([0.5, 0.8, 0.95, 0.99]).tolist() == pytest.approx(
            quantiles, rel=0.005
        )


def test_table_1_and_the_papers_arithmetic() -> None:
    gib = {name: model(name).weight_bytes / 2**30 for name in ROWS}
    assert gib["llama3.1-405b"] == pytest.approx(756.0, abs=0.1)
    assert list(kv().values()) == [192.0, 12.0, 192.0, 672.0]
    assert arithmetic().freed_replicas.tolist() == [4.0, 7.0]


def test_why_a_request_is_late_is_its_own_groups_memory_over_its_whole_wait() -> None:
    polls = pd.DataFrame(
        {
            ("short", "a"): [0.0, 1.0, 1.0, 1.0], ("short", "b"): [0.0, 0.0, 0.0, 0.0],
            ("busy", "a"): [0.0, 1.0, 1.0, 1.0], ("busy", "b"): [0.0, 0.0, 1.0, 1.0],
        },
        index=[0.0, 1.0, 2.0, 3.0],
    )  # fmt: skip
    found = pd.DataFrame(
        {"instance": ["a", "b", "b", "a"], "arrival_s": [0.5, 1.5, 0.0, 0.0],
         "first_s": [3.5, 3.5, 2.0, 0.5]}
    ).assign(ttft_s=lambda rows: rows.first_s - rows.arrival_s)  # fmt: skip
    causes = why_late(found, polls, 1.0)
    assert causes["late_memory"] == 0.25  # a's, full throughout
    assert causes["late_exchange"] == 0.25  # b's, while b's KV moved
    assert causes["late_neither"] == 0.25  # b's before; the last is not late
    assert causes["wait_short"] == pytest.approx(3.0 / 7.5)
    assert why_late(found, pd.DataFrame(), 1.0) == {}


def test_the_bound_is_the_control_with_endless_memory_at_the_same_point_and_seed() -> None:
    rows = pd.DataFrame(
        [
            {"system": system, "point": point, "seed": 0, "ttft_p99_s": times * p99,
             "wait_memory": memory}
            for point, times in (("azureconv", 1.0), ("agieval_cot", 2.0))
            for system, p99, memory in (
                ("kunserve", 2.0, np.nan), ("kunserve_control", 8.0, 0.9),
                ("llumnix_replication", 10.0, 0.7), ("kunserve_roomy", 1.0, 0.0),
            )
        ]
    )  # fmt: skip
    found = beside_bound(rows).set_index(["point", "system"])
    for point in ("azureconv", "agieval_cot"):
        assert found.over_kunserve[point, "llumnix_replication"] == 5.0
        assert found.over_bound[point, "kunserve_control"] == 8.0
        assert found.memory[point, "kunserve"] == 0.9
    assert np.isnan(found.over_bound["azureconv", "kunserve_roomy"])


def test_a_variant_is_beside_the_control_on_its_own_engine() -> None:
    rows = pd.DataFrame(
        [
            {"system": system, "point": "gb33", "seed": 0, "ttft_p99_s": p99, "tbt_p50_s": 1.0,
             "mechanism": drops, "wait_memory": memory}
            for system, p99, drops, memory in (
                ("kunserve", 2.0, 3.0, np.nan), ("kunserve_control", 8.0, np.nan, 0.0),
                ("kunserve_artifact", 2.0, 1.0, np.nan),
                ("kunserve_artifact_control", 5.0, np.nan, 0.9),
                ("llumnix_prompts_first", 6.0, np.nan, 0.8),
            )
        ]
    )  # fmt: skip
    found = beside(rows).set_index("system")
    assert found.over_control[["kunserve", "kunserve_artifact"]].tolist() == [4.0, 2.5]
    assert found.over_llumnix["kunserve_artifact"] == 3.0
    assert found.memory["kunserve_artifact"] == 0.9
    assert found.false_drops[["kunserve", "kunserve_artifact"]].tolist() == [3.0, 0.0]


def test_the_best_configuration_has_the_lowest_mean_tail() -> None:
    rows = pd.DataFrame(
        [
            {"plan": plan, "groups": groups, "seed": seed,
             **{f"{number}_s": p99 for number in LATENCIES}}
            for plan, groups, p99s in (
                ("throughput", None, (2.0, 4.0)), ("throughput", "[4,4]", (1.0, 4.0)),
                ("throughput", "[2,2]", (2.0, 2.0)),
            )
            for seed, p99 in enumerate(p99s)
        ]
    )  # fmt: skip
    found = over_best(rows)
    assert found[found.plan == "best"].groups.unique().tolist() == ["[2,2]"]
    greedy = found[(found.plan == "throughput") & found.groups.isna()]
    assert greedy.ttft_p99_over_best.tolist() == [1.0, 2.0]
