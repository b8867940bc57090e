"""The estimates of A.2: R² over 0.9 for all models, as the paper reports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness.cluster import ModelSpec
from harness.hardware import Hardware
from harness.sim.profile import HardwareProfile
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
        step_s = profile.decode_step_s(spec, min(size, 128), size * 400)
        assert estimator.decode_s("m", size, size * 400) == pytest.approx(step_s, rel=0.2)


def test_switching_is_weights_over_the_bandwidth_that_beta_leaves(h800: Hardware) -> None:
    spec = model_spec("llama2-13b")
    estimator = Estimator(HardwareProfile(h800), {"m": spec}, pcie_efficiency=0.625)
    assert estimator.switch_s("m") == pytest.approx(
        spec.weight_bytes / (h800.pcie_bytes_per_s * 0.625)
    )


def test_one_pair_of_constants_for_all_batch_sizes_fails_on_the_authors_own_profiles(
    data_dir: Path,
) -> None:
    """Why eq. 6 is fitted at each batch size and interpolated: their measured decode steps."""
    cells = pd.read_csv(data_dir / "profiles" / "engine_latency.csv")
    cells = cells[cells.clean & (cells.source == "profiles")]
    spec = model_spec("qwen2.5-7b")  # h and m are factors of the constants alone
    for _, grid in cells.groupby(["model", "device", "tp"]):
        grid = grid.groupby("batch").filter(lambda rows: len(rows) > 1)
        assert decode_r_squared(grid, spec) < 0.5
        parts = [part for _, part in grid.groupby("batch")]
        fitted = np.concatenate([decode_fit(part, spec) for part in parts])
        measured = np.concatenate([part.avg_decode_s.to_numpy() for part in parts])
        assert r_squared(measured, fitted) > 0.9


def decode_fit(cells: pd.DataFrame, spec: ModelSpec) -> np.ndarray:
    context = cells.input_len * cells.batch
    terms = np.array([decode_terms(spec, tokens) for tokens in context])
    return terms @ least_squares(terms, cells.avg_decode_s.to_numpy())


def decode_r_squared(cells: pd.DataFrame, spec: ModelSpec) -> float:
    return r_squared(cells.avg_decode_s.to_numpy(), decode_fit(cells, spec))
