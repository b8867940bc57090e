"""Calibration on served iterations: what is written down of them, and what a fit recovers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.calibrate import zoo
from harness.calibrate.fit import fit_served, served_errors
from harness.calibrate.scores import mape_pct
from harness.calibrate.serving import Iterations, Timed, running, served
from harness.clock import VirtualLoop
from harness.configuration.config import build
from harness.cost.hardware import Hardware
from harness.cost.model import CostModel
from harness.model_spec import ModelSpec
from harness.records.record import Recorder
from harness.request import Batch, Request

TURNAROUND_S = 8e-4
MODEL = zoo.model("llama2-7b")


def known(turnaround_s: float) -> Hardware:
    hardware = zoo.device("a100_sxm")
    return replace(
        hardware,
        num_devices=1,
        calibration=replace(hardware.calibration, turnaround_s=turnaround_s),
    )


def iterations(model: ModelSpec, hardware: Hardware) -> Iterations:
    """Served by the simulator, whose terms are known."""
    engine, recorder = build(zoo.node("engine/sim.yaml"), "engine"), Recorder([])
    with running(engine, model, hardware, recorder) as (cluster, loop):
        return served(cluster, loop, recorder, 60)


def test_the_time_of_a_served_execute_is_what_the_model_says_of_its_columns() -> None:
    hardware = known(TURNAROUND_S)
    seen = iterations(MODEL, hardware)
    assert (seen.chunks > 0).any()
    assert (seen.steps > 1).any()
    assert ((seen.chunks > 0) & (seen.decodes > 0)).any()
    error = served_errors(CostModel(MODEL, hardware).terms, TURNAROUND_S, seen)
    assert np.abs(error).max() < 1e-6


def test_a_pause_counts_where_requests_were_waiting_and_not_where_they_came_later() -> None:
    loop = VirtualLoop()

    class Instant:
        name, model, kv, load, drop, evict, settle = "i", MODEL, None, None, None, None, None

        async def execute(self, batch: Batch, **_: object) -> int:
            await loop.sleep(0.5)
            return 1

    timed = Timed(Instant(), loop)  # type: ignore[arg-type]
    early, late = Request(0, 0.0, "m", 8, 9), Request(1, 2.0, "m", 8, 9)

    async def main() -> None:
        await timed.execute(Batch(chunks=[(early, 8)]))
        await loop.sleep(0.25)  # a policy at work
        await timed.execute(Batch(decodes=[early]))
        await loop.sleep(1.0)
        await timed.execute(Batch(chunks=[(late, 8)]))

    loop.run(main())
    assert [row[-1] for row in timed.rows] == pytest.approx([0.5, 0.75, 0.5])


def test_a_fit_finds_the_turnaround_from_a_prior_that_is_off() -> None:
    hardware = known(TURNAROUND_S)
    terms = CostModel(MODEL, hardware).terms
    seen = iterations(MODEL, hardware)
    noise = 1 + 0.02 * np.random.default_rng(0).standard_normal(len(seen.seconds))
    noisy = seen._replace(seconds=seen.seconds * noise)
    prior = replace(terms, launch_s=2 * terms.launch_s, token_s=terms.token_s / 2)
    assert mape_pct(served_errors(prior, TURNAROUND_S, seen)) > 10
    found, turnaround_s = fit_served(noisy, prior)
    assert mape_pct(served_errors(found, turnaround_s, seen)) < 1
    assert turnaround_s == pytest.approx(TURNAROUND_S, rel=0.3)


def test_stalls_do_not_make_a_fit_too_fast() -> None:
    hardware = known(TURNAROUND_S)
    terms = CostModel(MODEL, hardware).terms
    seen = iterations(MODEL, hardware)
    stalls = 1 + np.random.default_rng(0).exponential(0.3, len(seen.seconds))
    stalled = seen._replace(seconds=seen.seconds * stalls)
    found, turnaround_s = fit_served(stalled, terms)
    error = served_errors(found, turnaround_s, stalled)
    assert (error * stalled.seconds).sum() == pytest.approx(0, abs=1e-9)
    mean = seen._replace(seconds=seen.seconds * 1.3)
    assert mape_pct(served_errors(found, turnaround_s, mean)) < 4
