"""Iterations rebuilt from token times alone, of a simulated server whose law is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from omegaconf import OmegaConf

from harness.calibrate import zoo
from harness.calibrate.fit import served_errors
from harness.calibrate.lockstep import Budget, Stream, timeline, works
from harness.calibrate.measure import served_scores
from harness.calibrate.measure_vllm import (
    calibration,
    fit,
    local_vllm_yaml,
    rebuild,
)
from harness.calibrate.scores import mape_pct
from harness.calibrate.serving import play_all, running, schedules
from harness.configuration.config import build, typed
from harness.configuration.options import plain
from harness.cost.hardware import Hardware
from harness.cost.model import CostModel
from harness.cost.terms import mixed_s
from harness.errors import RunError
from harness.records.record import Chunk, Recorder, TokenRecord
from harness.request import Request

PATH_S = 3e-3
LATE_S = 1e-3  # a step takes 20 times as long
MODEL = zoo.model("llama2-7b")
BUDGET = Budget(256, 2048)  # of conf/system/vllm.yaml


@pytest.fixture(scope="module")
def server() -> Hardware:
    """One device whose scheduler costs nothing and whose API takes PATH_S."""
    hardware = zoo.device("a100_sxm")
    calibration = replace(hardware.calibration, turnaround_s=0.0, path_s=PATH_S)
    return replace(hardware, num_devices=1, calibration=calibration)


@pytest.fixture(scope="module")
def phases(server: Hardware) -> list[list[TokenRecord]]:
    """What the clients of that server saw of the calibration's traffic."""
    played, engine = schedules(60), build(zoo.node("engine/sim.yaml"), "engine")
    recorder = Recorder([request for requests, _ in played for request in requests])
    with running(engine, MODEL, server, recorder) as (cluster, loop):
        return [
            [recorder.records[request.request_id] for request in requests]
            for requests, _ in play_all(played, cluster, loop, recorder)
        ]


def test_every_rebuilt_iteration_takes_what_the_law_says_of_its_content(
    phases: list[list[TokenRecord]], server: Hardware
) -> None:
    seen = rebuild(phases, BUDGET)
    rows = seen.iterations
    assert seen.num_misplaced == 0
    assert (rows.steps > 1).any()
    assert ((rows.chunks > 1) & (rows.decodes > 0)).any()
    assert rows.tokens.max() == BUDGET.max_num_batched_tokens  # a prompt was cut to fit
    error = served_errors(CostModel(MODEL, server).terms, 0.0, rows)
    assert np.abs(error).max() < 1e-6


def test_the_fit_finds_the_law_and_the_path_of_the_api_through_late_stamps(
    phases: list[list[TokenRecord]], server: Hardware
) -> None:
    terms = CostModel(MODEL, server).terms
    rng = np.random.default_rng(0)
    late = [[delayed(record, rng) for record in records] for records in phases]
    seen = rebuild(late, BUDGET)
    prior = replace(terms, launch_s=2 * terms.launch_s, token_s=terms.token_s / 2)
    found, path_s = fit(seen, prior)
    true = rebuild(phases, BUDGET).iterations
    assert mape_pct(served_errors(prior, 0.0, true)) > 10
    assert mape_pct(served_errors(found, 0.0, true)) < 2
    # The path takes what the fit does not know of a prompt by itself: together they are right.
    first_s = path_s + np.array([mixed_s(found, *work) for work in seen.alone])
    assert mape_pct(first_s / seen.alone_s - 1) < 2
    assert path_s == pytest.approx(PATH_S + LATE_S / 2, abs=2e-3)


def test_the_profile_that_is_written_is_the_local_one_with_the_servers_times(
    phases: list[list[TokenRecord]], server: Hardware
) -> None:
    seen = rebuild(phases, BUDGET)
    found = calibration(seen, MODEL, replace(server, name="local"), [(16, 1), (64, 4), (256, 8)])
    (terms,) = found.measured.values()
    score = served_scores(served_errors(terms, 0.0, seen.iterations), seen.iterations)
    told = {"vllm_version": "0.32.0", "device": "cpu"}
    text = local_vllm_yaml(found, MODEL, zoo.hardware("local"), told, seen, score)
    node, local = OmegaConf.create(text), zoo.node("hardware/local.yaml")
    assert node.pop("defaults") == ["local", "_self_"]
    profile: Hardware = typed(plain(OmegaConf.merge(local, node)), Hardware, "hardware")
    assert profile.name == "local_vllm"
    assert profile.memory_bytes == local["memory_bytes"]
    assert profile.calibration.path_s == pytest.approx(PATH_S, rel=0.1)
    cost, true = CostModel(MODEL, profile), CostModel(MODEL, server)
    assert cost.decode_step(8, 2000)[0] == pytest.approx(true.decode_step(8, 2000)[0], rel=0.05)


def test_a_gpus_profile_is_whole_and_has_the_servers_models_alone(
    phases: list[list[TokenRecord]],
) -> None:
    """Those that the public profile measured are of another engine."""
    seen, h100 = rebuild(phases, BUDGET), zoo.hardware("h100x1")
    assert h100.calibration.measured
    found = calibration(seen, MODEL, h100, [(16, 1), (64, 4), (256, 8)])
    (terms,) = found.measured.values()
    score = served_scores(served_errors(terms, 0.0, seen.iterations), seen.iterations)
    told = {"vllm_version": "0.32.0", "device": "NVIDIA H100 80GB HBM3"}
    text = local_vllm_yaml(found, MODEL, h100, told, seen, score)
    assert "NVIDIA H100 80GB HBM3 beside" in text
    profile: Hardware = typed(plain(OmegaConf.create(text)), Hardware, "hardware")
    assert (profile.name, profile.device) == ("local_vllm_gpu", h100.device)
    assert list(profile.calibration.measured) == list(found.measured)
    assert profile.nvlink_bytes_per_s == h100.nvlink_bytes_per_s


def delayed(record: TokenRecord, rng: np.random.Generator) -> TokenRecord:
    """Each token up to LATE_S late, in order."""
    copy = TokenRecord(record.request)
    copy.sent_s = record.sent_s
    times_s = record.token_times_s()
    times_s = np.maximum.accumulate(times_s + rng.uniform(0, LATE_S, len(times_s)))
    copy.segments = [Chunk(float(time_s), 1) for time_s in times_s]
    return copy


def test_a_prompt_that_two_iterations_share_is_cut_where_the_budget_ends() -> None:
    """Eight tokens a step: one stream runs, then prompts of 2 and 9 come during step 1."""
    streams = [
        Stream(3, 0.0, np.array([1.0, 2.0, 3.0, 4.0, 5.0])),
        Stream(2, 1.5, np.array([3.0, 4.0])),
        Stream(9, 1.6, np.array([4.0, 5.0])),
    ]
    found = timeline(streams)
    assert found.first == [0, 2, 3]
    content = works(streams, found, Budget(8, 8))
    assert [work.tokens for work in content] == [3, 1, 8, 2 + 4, 2]
    cut = content[3]  # the last four of nine, after five
    assert (cut.chunks, cut.decodes, cut.pairs) == (1, 2, 4 * 5 + 4 * 5 / 2)
    assert cut.context_tokens == (3 + 3) + (2 + 1) + 5


def test_a_late_first_token_is_placed_by_those_that_follow_it() -> None:
    """It comes nearer to step 3's tokens than to those of step 2, its own."""
    streams = [
        Stream(3, 0.0, np.array([1.0, 2.0, 3.0, 4.0, 5.0])),
        Stream(2, 1.5, np.array([3.9, 4.1, 5.1])),
    ]
    assert timeline(streams).first == [0, 2]


def test_streams_that_do_not_tick_together_are_refused() -> None:
    """One gets its tokens at half the other's pace."""
    records = [seen_of(range(1, 41)), seen_of(range(1, 41, 2))]
    with pytest.raises(RunError, match="the server preempts"):
        rebuild([records], BUDGET)


def seen_of(times_s: range) -> TokenRecord:
    record = TokenRecord(Request(0, 0.0, "default", 4, len(times_s)))
    record.sent_s = 0.5
    record.segments = [Chunk(float(time_s), 1) for time_s in times_s]
    return record
