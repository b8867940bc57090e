"""What BlitzScale's figures compute from runs, on numbers that can be worked out by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from harness.experiments.compose import CONF, conf
from harness.experiments.figures import described
from harness.experiments.points import Point
from plots.blitzscale.latency import RATES, violating
from plots.blitzscale.network import needed
from plots.blitzscale.numbers import throughput
from plots.blitzscale.plans import SCHEDULERS, numbers, pair
from plots.blitzscale.runs import (
    MEASURES,
    WORKLOAD,
    Latencies,
    Run,
    counted,
    gpu_seconds,
    held_over_time,
    over_time,
    saved,
    since_the_run_began,
)
from plots.runs import held
from systems.blitzscale.timeline import replay

WORKLOADS = CONF / "experiment/blitzscale/workload"


def latencies(*ttft: float, tpot: float = 0.1) -> Latencies:
    first = np.array(ttft)
    none = np.array([])
    return Latencies(
        arrival=np.zeros(len(ttft)), ttft=first, at=none, tbt=none, tpot=np.full(len(ttft), tpot)
    )  # fmt: skip


def run(system: str, *ttft: float, seed: int = 0) -> Run:
    point = Point("", {}, seed, Path(), "")
    return Run(point, "azure_conv", system, True, 1.0, latencies(*ttft))


def test_a_step_without_any_has_no_mean_but_a_rate_of_none() -> None:
    at = np.array([0.1, 0.9, 2.5])
    seconds, means = over_time(at, np.array([1.0, 3.0, 5.0]))
    assert seconds.tolist() == [0.0, 2.0]
    assert means.tolist() == [2.0, 5.0]
    assert over_time(at)[1].tolist() == [2.0, 0.0, 1.0]
    assert over_time(at, step_s=2.0)[1].tolist() == [1.0, 0.5]


def test_gpus_held_are_the_shares_of_each_step() -> None:
    slots = pd.DataFrame(
        {"start_s": [0.0, 0.5], "end_s": [2.0, 1.5], "role": ["prefill", "decode"],
         "num_devices": [2, 4]}
    )  # fmt: skip
    assert held_over_time(slots, ["prefill"], 1.0)[1].tolist() == [2.0, 2.0]
    assert held_over_time(slots, ["decode"], 1.0)[1].tolist() == [2.0, 2.0]


def test_what_is_saved_is_of_the_same_seed() -> None:
    found = [
        run("blitzscale", 1.0), run("blitzscale", 3.0, seed=1), run("allcache", 4.0),
    ]  # fmt: skip
    rows = list(saved(found, "allcache", quantities=["mean TTFT"]))
    assert [(row["quantity"], row["seed"], row["value"]) for row in rows] == [
        ("share of mean TTFT saved", 0, 0.75),
        ("mean TTFT over", 0, 0.25),
    ]


def test_what_happens_in_the_warm_up_does_not_count(tmp_path: Path) -> None:
    """AzureConv has 120 s of it: one request before and one after; a GPU held from 100 s to 130 s,
    two loads."""
    pd.DataFrame(
        {"request_id": ["a", "b"], "model": "m", "instance": "i", "arrival_s": [119.0, 121.0],
         "status": "completed", "prompt_tokens": 5, "output_tokens": 2, "num_preemptions": 0,
         "token_times_s": [[120.0, 122.0], [123.0, 124.0]]}
    ).to_parquet(tmp_path / "requests.parquet")  # fmt: skip
    slot, load = {"role": "prefill", "num_devices": 2}, {"source": "ssd-0"}
    pd.DataFrame(
        {"kind": ["slot", "load", "load"], "instance": "i", "start_s": [100.0, 110.0, 125.0],
         "end_s": [130.0, 115.0, 129.0],
         "fields": [json.dumps(each) for each in (slot, load, load)]}
    ).to_parquet(tmp_path / "events.parquet")  # fmt: skip
    (tmp_path / "manifest.json").write_text('{"choices": {"system": "blitzscale"}}')
    point = Point("", {WORKLOAD: "azure_conv"}, 0, tmp_path, "")
    (request,) = counted(point).itertuples()
    assert (request.arrival_s, request.ttft_s, list(request.token_times_s)) == (
        1.0,
        2.0,
        [3.0, 4.0],
    )
    of_window = Run(point, "azure_conv", "blitzscale", True, 1.0, latencies(1.0))
    assert of_window.loads().start_s.tolist() == [5.0]
    assert gpu_seconds(of_window) == 20.0


def test_kv_in_the_window_is_that_of_the_warm_ups_requests_too(tmp_path: Path) -> None:
    """AzureConv has 120 s of warm-up. Request "a" comes before and decodes until second 3 of the
    window. Request "b" comes in second 1, has its first token at 2 s and its last after the
    window's four seconds."""
    pd.DataFrame(
        {"request_id": ["a", "b"], "model": "m", "instance": "i", "arrival_s": [110.0, 121.0],
         "status": "completed", "prompt_tokens": [5, 7], "output_tokens": 3, "num_preemptions": 0,
         "token_times_s": [[119.0, 121.5, 123.0], [122.0, 125.0, 126.0]]}
    ).to_parquet(tmp_path / "requests.parquet")  # fmt: skip
    point = Point("", {WORKLOAD: "azure_conv"}, 0, tmp_path, "")
    assert since_the_run_began(point).arrival_s.tolist() == [-10.0, 1.0]
    found, _ = held(since_the_run_began(point), np.arange(4.0).astype(np.float64))
    assert found.tolist() == [5 + 1, 5 + 1, 5 + 2 + 7 + 1, 7 + 1]


def test_halves_of_a_window_are_by_arrival() -> None:
    found = latencies(1.0, 3.0, 5.0)
    found.arrival = np.array([0.0, 4.0, 10.0])
    of_run = Run(Point("", {}, 0, Path(), ""), "w", "s", True, 1.0, found)
    halves = ("mean TTFT, first half", "mean TTFT, second half")
    assert [MEASURES[half](of_run) for half in halves] == [2.0, 5.0]


@pytest.mark.parametrize("workload", RATES)
def test_captions_tell_the_rates_that_runs_have(workload: str) -> None:
    told = yaml.safe_load((WORKLOADS / f"{workload}.yaml").read_text())
    assert RATES[workload] == f"x {told['workload']['scale']['rate']:g}"


def test_violations_are_beyond_five_times_the_mean_and_not_at_it() -> None:
    mean = latencies(1.0, 1.0)
    assert violating(latencies(5.0, 5.1, 0.1, 0.1), mean) == 0.25
    assert violating(latencies(1.0, 1.0, tpot=0.6), mean) == 1.0


def test_the_rate_that_is_needed_lies_between_the_points_around_60_percent() -> None:
    table = pd.DataFrame(
        {"quantity": "violations, either", "workload": "burstgpt", "seed": 0, "valid": True,
         "load": "half", "rate": 1.0, "mechanism": 3.0, "gbps": [10.0, 1000.0],
         "value": [0.8, 0.4]}
    )  # fmt: skip
    assert next(needed(table))["value"] == pytest.approx(100.0)
    assert math.isnan(float(str(next(needed(table.assign(value=0.1)))["value"])))


def test_fig_15_ends_as_published() -> None:
    ends = {}
    for name, scheduler in SCHEDULERS.items():
        rows = numbers(name, replay(pair(7, 6, 6.0), scheduler(pair(7, 6, 6.0))))
        ends[name] = [row["value"] for row in rows if row["quantity"] == "end"]
    assert ends["source alone, and stop-the-world (Fig. 9 a, b)"] == [7, 14, 21, 28, 35, 42]
    assert ends["best effort (Fig. 15 a)"] == [7, 13, 19, 25, 31, 37]
    assert ends["ZigZag, ILP-free (Fig. 15 b, 16)"] == [7, 12, 17, 21, 24, 27]


def test_section_4s_throughputs() -> None:
    assert list(throughput().values()) == pytest.approx([1 / 7, 1 / 6, 2.0])


@pytest.mark.parametrize("name", ["fig12", "fig13", "fig14", "fig15", "table1", "table_numbers"])
def test_rows_of_no_run_say_whose_numbers_they_are(name: str) -> None:
    conf()
    assert set(described(f"blitzscale_{name}").table([]).inputs) <= {"paper", "ours", "drawn"}
