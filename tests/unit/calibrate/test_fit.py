"""The fit finds constants that made the cells, and meets its bars on the real profiles."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf

from harness.calibrate import scores as scoring
from harness.calibrate import zoo
from harness.calibrate.conf_files import calibrations, write_calibrations
from harness.calibrate.fit import START, Law, errors, fit_law, fit_pair, on_limits
from harness.calibrate.pages import limits
from harness.calibrate.profiles import Cells, read_profiles
from harness.calibrate.scores import (
    DECODE_BAR_PCT,
    LEFT_OUT_DECODE_BAR_PCT,
    LEFT_OUT_PREFILL_BAR_PCT,
    PREFILL_BAR_PCT,
    R2_BAR,
    chip,
    layers,
    leave_one_out,
    mape_pct,
    missed,
    scores,
    table,
)
from harness.calibrate.sources import DEVICE, SPLITWISE, compare, outside_pct
from harness.configuration.config import typed
from harness.configuration.options import plain
from harness.cost.hardware import Calibration, Hardware, pair_key
from harness.cost.terms import decode_s, prefill_s

# Pairs that miss the bars, and by how much they may. These numbers are no bars: they stand just
# above what the fit gives, so that a change that makes it worse is seen. Of most the measurements
# scatter by more than the bar, which no fit gets under; docs/simulator.md tells of the others.
LATE_PREFILL = {("yi-6b", "h800_sxm", 1): 15.0, ("llama2-7b", "h800_sxm", 4): 8.0}
LATE_DECODE = {("llama2-7b", "h800_sxm", 1): 5.7, ("qwen-7b", "h800_sxm", 1): 5.7}
TENSOR_PARALLEL_DECODE_PCT = 11.5  # on H800, all measured tensor-parallel pairs
TENSOR_PARALLEL_R2 = 0.68  # of decodes, which scatter more than they grow


@pytest.fixture(scope="module")
def cells(data_dir: Path) -> list[Cells]:
    return read_profiles(data_dir / "profiles")


@pytest.fixture(scope="module")
def law(cells: list[Cells]) -> Law:
    return fit_law(cells)


@pytest.fixture(scope="module")
def fitted(cells: list[Cells], law: Law) -> pd.DataFrame:
    return table(scores(c, fit_pair(c, law.terms(c))) for c in cells)


def made_up(model: str, hardware: Hardware, noise: float = 0.0) -> Cells:
    """Cells that the law itself makes, with relative noise."""
    rng = np.random.default_rng(0)
    lengths, batches = (16, 64, 256, 1024, 4096), (1, 2, 4, 16, 64, 160)
    grid = [(n, b) for n in lengths for b in batches if n * b <= 8192]
    input_len, batch = np.array(grid, float).T
    blank = Cells(model, "bench", 1, input_len, batch, batch, batch)
    terms = Law({"bench": hardware.calibration}, hardware.calibration, {"bench": hardware})
    c = terms.terms(blank)
    prefill = prefill_s(c, blank.tokens, blank.query_key_pairs, batch)
    decode = decode_s(c, batch, blank.context_tokens)
    shake = 1 + noise * rng.standard_normal((2, len(batch)))
    return replace(blank, prefill_s=prefill * shake[0], decode_s=decode * shake[1])


def test_the_law_recovers_the_constants_that_made_its_cells() -> None:
    truth = zoo.device("a100_sxm")
    models = ("llama2-7b", "llama2-13b", "yi1.5-9b", "qwen2.5-7b", "opt-30b")
    found = fit_law([made_up(m, truth, 0.01) for m in models], {"bench": truth})
    wanted = truth.calibration
    for name, tolerance in {
        "memory_efficiency": 0.05, "compute_efficiency": 0.03, "kv_efficiency": 0.15,
        "attention_efficiency": 0.3, "request_s": 0.1, "launch_layer_s": 0.15,
    }.items():  # fmt: skip
        value = getattr(found.devices["bench"], name)
        assert value == pytest.approx(getattr(wanted, name), rel=tolerance), name


def test_a_pair_is_fitted_to_its_cells_wherever_the_prior_stands() -> None:
    truth = zoo.device("a100_sxm")
    cells = made_up("llama2-13b", truth, 0.01)
    prior = fit_law([made_up("yi-6b", zoo.device("a10"))], {"bench": zoo.device("a10")})
    far = prior.terms(cells)
    assert mape_pct(errors(far, cells)[1]) > 20
    for error in errors(fit_pair(cells, far), cells):
        assert mape_pct(error) < 2


def test_a_straggler_does_not_move_a_fit() -> None:
    cells = made_up("llama2-7b", zoo.device("a100_sxm"))
    prior = Law({}, zoo.device("a100_sxm").calibration, {"bench": zoo.device("a100_sxm")})
    decode = cells.decode_s.copy()
    decode[3] *= 3
    spoiled = replace(cells, decode_s=decode)
    error = errors(fit_pair(spoiled, prior.terms(cells)), cells)[1]
    assert np.abs(error).max() < 0.03


def test_only_clean_cells_are_read_and_no_measurement_twice(cells: list[Cells]) -> None:
    assert len(cells) == 31
    assert sum(len(c.batch) for c in cells) == 2936
    assert all(c.tokens.max() <= 8192 for c in cells)


def test_every_fitted_pair_meets_its_bars_or_is_known_to_miss_them(fitted: pd.DataFrame) -> None:
    for row in fitted.itertuples():
        pair = row.model, row.device, row.tp
        assert row.prefill_mape_pct <= LATE_PREFILL.get(pair, PREFILL_BAR_PCT), pair
        decode_bar = DECODE_BAR_PCT if row.tp == 1 else TENSOR_PARALLEL_DECODE_PCT
        assert row.decode_mape_pct <= LATE_DECODE.get(pair, decode_bar), pair
        assert row.decode_r2 > (R2_BAR if row.tp == 1 else TENSOR_PARALLEL_R2), pair
        if pair not in LATE_PREFILL:
            assert row.prefill_r2 > R2_BAR, pair


def test_misses_are_told(fitted: pd.DataFrame) -> None:
    told = [", ".join(missed(row)) for row in fitted.itertuples() if row.model == "yi-6b"]
    assert sorted(told) == ["", "prefill 14.3 %, prefill R² 0.87"]


def test_a_device_is_left_out_with_all_of_its_chip() -> None:
    devices = ("a100_sxm", "a800_sxm", "a10", "h100_sxm", "h800_sxm")
    a100, a800, a10, h100, h800 = map(chip, devices)
    assert a100 == a800
    assert h100 == h800
    assert len({a10, a100, h100}) == 3


def test_a_model_is_left_out_with_all_that_have_its_layers(cells: list[Cells]) -> None:
    twins: dict[str, set[str]] = {}
    for c in cells:
        twins.setdefault(layers(c.model), set()).add(c.model)
    assert sorted(map(sorted, twins.values())) == [
        ["baichuan-7b", "llama2-7b", "qwen-7b"],
        ["baichuan2-13b", "llama2-13b", "qwen1.5-14b"],
        ["qwen2.5-7b"],
        ["yi-6b"],
        ["yi1.5-9b"],
    ]


def test_a_law_sees_neither_the_model_that_it_predicts_nor_its_twins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hardware, seen = zoo.device("a100_sxm"), []
    made = [made_up(model, hardware) for model in ("llama2-7b", "qwen-7b", "yi-6b")]

    def fit(known: list[Cells]) -> Law:
        seen.append(sorted(c.model for c in known))
        return Law({}, hardware.calibration, {"bench": hardware})

    monkeypatch.setattr(scoring, "fit_law", fit)
    assert len(leave_one_out(made, "model")) == 3
    assert sorted(seen) == [["llama2-7b", "qwen-7b"], ["yi-6b"]]


def test_left_out_models_and_devices_are_predicted(cells: list[Cells]) -> None:
    for what in ("model", "device"):
        frame = leave_one_out(cells, what)
        assert len(frame) == len(cells)
        for part in (frame, frame[frame.tp == 1]):
            assert part.prefill_mape_pct.median() <= LEFT_OUT_PREFILL_BAR_PCT
            assert part.decode_mape_pct.median() <= LEFT_OUT_DECODE_BAR_PCT


def test_the_model_agrees_with_other_sources_as_they_do_with_each_other(data_dir: Path) -> None:
    frame = compare(zoo.device(DEVICE).calibration, data_dir / "profiles")
    engines = frame[["DistServe's distserve", "DistServe's vllm"]].dropna()
    spread_pct = 100 * (engines.max(axis=1) / engines.min(axis=1) - 1)
    assert frame.outside_pct.max() < spread_pct.median()
    alone = frame.model == SPLITWISE  # one engine alone, and slower than the model on 8 GPUs
    assert frame[~alone].outside_pct.max() < 20
    assert (frame[~alone].outside_pct == 0).mean() > 0.6


def test_a_70b_model_on_two_and_four_gpus_is_predicted_from_smaller_ones(data_dir: Path) -> None:
    frame = compare(zoo.device(DEVICE).calibration, data_dir / "profiles")
    few = frame[(frame.model == SPLITWISE) & (frame.tp < 8)]
    assert len(few) == 6
    assert few.outside_pct.max() < LEFT_OUT_DECODE_BAR_PCT


def test_how_far_outside_is_told_in_percent_of_the_nearest_source(data_dir: Path) -> None:
    assert outside_pct(15.0, [10.0, 20.0]) == 0
    assert outside_pct(40.0, [10.0, 20.0]) == pytest.approx(100)  # twice as slow as the slowest
    assert outside_pct(5.0, [10.0, 20.0]) == pytest.approx(50)  # twice as fast as the fastest
    known = zoo.device(DEVICE).calibration
    slow = replace(known, decode_s=known.decode_s + 1, measured={})
    frame = compare(slow, data_dir / "profiles")
    lone = frame[(frame.model == "llama2-13b") & (frame.quantity == "decode_32_ms")]
    assert lone.outside_pct.item() == pytest.approx(100 * (lone.model_says.item() / 24.1 - 1))


def test_constants_that_ended_on_a_limit_are_named(law: Law) -> None:
    assert on_limits(law.devices["a100_sxm"]) == on_limits(law.mean) == []
    assert on_limits(law.devices["h100_sxm"]) == ["memory_efficiency 1", "kv_efficiency 1"]
    low = replace(law.mean, chunk_s=START["chunk_s"][1])
    assert on_limits(low) == ["chunk_s 1e-07"]
    assert limits({"h100_sxm": on_limits(low), "a10": []}) == "chunk_s 1e-07 of h100_sxm"
    assert limits({"a10": []}) == "none"


def test_sources_are_compared_with_the_calibration_that_is_given(data_dir: Path) -> None:
    known = zoo.device(DEVICE).calibration
    slow = replace(known, compute_efficiency=known.compute_efficiency / 2, measured={})
    frames = [compare(each, data_dir / "profiles") for each in (known, slow)]
    said = [frame[frame.quantity == "prefill_us_per_token"].model_says for frame in frames]
    assert (said[1] > 1.5 * said[0]).all()


def test_the_committed_calibrations_are_what_the_profiles_give(
    cells: list[Cells], law: Law
) -> None:
    for c in cells:
        committed = zoo.device(c.device).calibration.measured[pair_key(c.model, c.tp)]
        fresh = fit_pair(c, law.terms(c))
        for kept, now in zip(errors(committed, c), errors(fresh, c), strict=True):
            assert np.abs(kept - now).max() < 0.01, c.pair


def test_written_calibrations_are_read_back(law: Law, tmp_path: Path) -> None:
    cells = replace(made_up("llama2-7b", zoo.device("a100_sxm")), device="a100_sxm")
    found = calibrations(law, [(cells, law.terms(cells))])
    for path in write_calibrations(tmp_path / "new" / "folder", found):
        read = typed(plain(OmegaConf.load(path)), Calibration, path.stem)
        for name, value in asdict(found[path.stem]).items():
            close = pytest.approx(value, rel=1e-3) if isinstance(value, float) else value
            assert getattr(read, name) == close or name == "measured", name
        measured = {"llama2-7b_tp1"} if path.stem in ("a100_sxm", "a800_sxm") else set()
        assert set(read.measured) == measured
