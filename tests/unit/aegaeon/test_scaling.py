"""Preemptive auto-scaling by stage: what each optimisation of §5 takes out of the sequence."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from harness.errors import UsageError
from tests.unit.aegaeon.test_serving import OFF, STAGES
from tests.unit.aegaeon.trial import Trial, requests_of

STEPS = ("swap_out", "collect", "restart", "load", "adopt", "swap_in")


def switches(overrides: list[str]) -> list[list[dict[str, Any]]]:
    """The steps of each switch of the decode instance between two models that both have KV."""
    trial = Trial(*overrides, "system.max_quota_s=0.05", num_instances=2)
    trial.serve(requests_of((0.0, "narrow-0", 100, 300), (0.0, "wide-1", 100, 300)))
    decoder = trial.pool[1].name
    mine = [e for e in trial.recorder.events if e["instance"] == decoder]
    found = []
    for switch in (e for e in mine if e["kind"] == "switch"):
        between = [
            e for e in mine
            if e["kind"] in STEPS and e["start_s"] >= switch["start_s"]
            and e["end_s"] <= switch["end_s"] + 1.0 and e["start_s"] <= switch["end_s"]
        ]  # fmt: skip
        if {"swap_out", "swap_in"} <= {e["kind"] for e in between}:
            found.append(sorted(between, key=lambda e: (e["start_s"], e["end_s"])))
    assert found
    return found


def order(steps: list[dict[str, Any]]) -> list[str]:
    return [e["kind"] for e in steps]


def sequential(steps: list[dict[str, Any]]) -> bool:
    return all(a["end_s"] <= b["start_s"] for a, b in pairwise(steps))


def test_t0_saves_collects_restarts_loads_and_restores_one_after_the_other() -> None:
    for steps in switches(STAGES["T0"]):
        assert order(steps) == ["swap_out", "collect", "restart", "load", "swap_in"]
        assert sequential(steps)
        assert not steps[3]["fields"]["staged"]


def test_t1_component_reuse_leaves_the_restart_out() -> None:
    for steps in switches(STAGES["T1"]):
        assert order(steps) == ["swap_out", "collect", "load", "swap_in"]
        assert sequential(steps)


def test_t2_explicit_memory_leaves_the_collection_out_and_stages_the_load() -> None:
    for steps in switches([*STAGES["T2"], f"{OFF}.prefetch=false"]):
        assert order(steps) == ["swap_out", "load", "swap_in"]
        assert sequential(steps)
        assert steps[1]["fields"]["staged"]


def test_prefetching_replaces_the_load_by_a_copy_on_the_device() -> None:
    assert any(order(s) == ["swap_out", "adopt", "swap_in"] for s in switches(STAGES["T2"]))


def test_t3_moves_kv_out_and_in_beside_the_weights() -> None:
    for steps in switches(STAGES["T3"]):
        begun = {e["kind"]: e["start_s"] for e in steps}
        weights = next(e for e in steps if e["kind"] in ("load", "adopt"))
        assert begun["swap_out"] <= weights["start_s"]
        assert begun["swap_in"] < weights["end_s"]


def test_in_t3_a_load_does_not_wait_for_the_kv_that_leaves() -> None:
    for steps in switches([*STAGES["T3"], f"{OFF}.prefetch=false"]):
        (load,) = [e for e in steps if e["kind"] == "load"]
        assert all(load["start_s"] < e["end_s"] for e in steps if e["kind"] == "swap_out")


def test_the_model_of_the_next_turn_is_prefetched_beyond_the_end_of_a_round() -> None:
    """Three models take turns, and two fit on the device: after a first round no switch loads."""
    trial = Trial("system.max_quota_s=0.5", num_models=3, num_instances=2)
    trial.serve(requests_of(*[(0.0, name, 100, 2000) for name in ("narrow-0", "wide-1", "deep-2")]))
    decoder = trial.pool[1].name
    placed = [
        e for e in trial.recorder.events
        if e["instance"] == decoder and e["kind"] in ("load", "adopt")
    ]  # fmt: skip
    assert len(placed) >= 9
    assert {e["kind"] for e in placed[3:]} == {"adopt"}


def test_the_oldest_requests_kv_comes_first() -> None:
    """Three requests of a batch come back at the beginning of its turn."""
    trial = Trial("system.max_quota_s=0.05", num_instances=2)
    batch = [(0.001 * i, "narrow-0", 100, 300) for i in range(3)]
    trial.serve(requests_of(*batch, (0.0, "wide-1", 100, 300)))
    decoder = trial.pool[1].name
    came = [
        (e["start_s"], e["fields"]["request_id"]) for e in trial.events("swap_in")
        if e["instance"] == decoder and e["fields"]["model"] == "narrow-0"
    ]  # fmt: skip
    ids = [number for _, number in came]
    whole = [ids[k : k + 3] for k in range(len(ids) - 3, 0, -3)][:-1]
    assert whole
    assert all(each == sorted(each) for each in whole), ids


def test_each_stage_is_faster_than_the_one_before() -> None:
    """Fig. 7, 8 and 10: T0 > T1 > T2 > T3, in the switches between two running models."""
    means = []
    for stage in STAGES.values():
        latencies = [s[-1]["end_s"] - s[0]["start_s"] for s in switches(stage)]
        means.append(sum(latencies) / len(latencies))
    assert means == sorted(means, reverse=True)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["component_reuse=false"], "explicit_memory=true needs component_reuse=true"),
        (["explicit_memory=false"], "prefetch=true needs explicit_memory=true"),
        (
            ["component_reuse=false", "explicit_memory=false", "prefetch=false"],
            "fine_grained_sync=true needs component_reuse=true",
        ),
    ],
)
def test_an_optimisation_without_what_it_needs_is_refused(overrides: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Trial(*[f"{OFF}.{one}" for one in overrides])


def test_the_artifact_prefetches_once_when_a_model_has_come_and_the_paper_at_any_time() -> None:
    """A request for a second model arrives while the prefill instance is busy with the first."""
    wanted = [(0.0, "narrow-0", 300, 1)] * 6 + [(0.03, "wide-1", 300, 1)]
    prefetched = {}
    for once in ("false", "true"):
        trial = Trial(f"system.variants.paper.prefetch_once={once}", num_instances=2)
        trial.serve(requests_of(*wanted))
        first = trial.pool[0].name
        steps = [e for e in trial.recorder.events if e["instance"] == first]
        prefetched[once] = [e["fields"]["model"] for e in steps if e["kind"] == "adopt"]
    assert prefetched == {"false": ["wide-1"], "true": []}
