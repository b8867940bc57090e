"""The estimates of A.2: R² over 0.9 for all models, as the paper reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness.cost.hardware import Hardware
from harness.cost.profile import HardwareProfile
from systems.aegaeon.estimate import (
    Estimator,
    decode_terms,
    fit_decode,
    fit_prefill,
    least_squares,
    r_squared,
)
from tests.running import ROOT, hardware_profile, model_spec

MODELS = sorted(path.stem for path in (ROOT / "conf" / "model").glob("*.yaml"))


@pytest.fixture(scope="module")
def h800() -> Hardware:
    return hardware_profile("h800x16")


@pytest.mark.parametrize("name", MODELS)
def test_r_squared_is_over_0_9_for_every_model(name: str, h800: Hardware) -> None:
    profile, spec = HardwareProfile(h800), model_spec(name)
    assert fit_prefill(profile, spec).r_squared > 0.9
    assert fit_decode(profile, spec).r_squared > 0.9


def test_estimates_between_profiled_cells_stay_near(h800: Hardware) -> None:
    profile, spec = HardwareProfile(h800), model_spec("llama2-13b")
    estimator = Estimator(profile, {"m": spec}, pcie_efficiency=0.625)
    assert estimator.prefill_s("m", 700) == pytest.approx(profile.prefill_s(spec, 700), rel=0.2)
    for size in (1, 3, 24, 100, 500):
        step_s = profile.decode_step_s(spec, size, size * 400)
        assert estimator.decode_s("m", size, size * 400) == pytest.approx(step_s, rel=0.2)


def test_switching_is_weights_over_the_share_beta_of_the_nominal_bandwidth(h800: Hardware) -> None:
    spec = model_spec("llama2-13b")
    for achieved in (5e10, 1e10):  # what a link achieves is not asked for: beta is what it loses
        profile = HardwareProfile(replace(h800, pcie_bytes_per_s=achieved))
        estimator = Estimator(profile, {"m": spec}, pcie_efficiency=0.625)
        assert estimator.switch_s("m") == pytest.approx(spec.weight_bytes / (64e9 * 0.625))


def test_devices_of_a_model_load_their_shards_side_by_side(h800: Hardware) -> None:
    spec = model_spec("llama2-13b")
    models = {"one": spec, "four": replace(spec, tp=4)}
    estimator = Estimator(HardwareProfile(h800), models, pcie_efficiency=0.625)
    assert estimator.switch_s("four") == pytest.approx(estimator.switch_s("one") / 4)


def test_decodes_that_the_authors_measured_need_the_term_for_the_batch_size(
    data_dir: Path,
) -> None:
    """Eq. 6 as printed explains less than a third of them, with C6 times the batch size 0.9."""
    cells = pd.read_csv(data_dir / "profiles" / "engine_latency.csv")
    cells = cells[cells.clean & (cells.source == "profiles")]
    spec = model_spec("qwen2.5-7b")  # h and m are factors of the constants alone
    for _, grid in cells.groupby(["model", "device", "tp"]):
        grid = grid.groupby("batch").filter(lambda rows: len(rows) > 1)
        sizes = zip(grid.batch.tolist(), grid.input_len.tolist(), strict=True)
        terms = np.array([decode_terms(spec, size, size * length) for size, length in sizes])
        times_s = grid.avg_decode_s.to_numpy()
        assert explained(terms[:, :2], times_s) < 1 / 3
        assert explained(terms, times_s) > 0.9


def explained(terms: np.ndarray, times_s: np.ndarray) -> float:
    return r_squared(times_s, terms @ least_squares(terms, times_s))
