"""Published measurements: how they are read, and what is fitted to them."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from harness.calibrate import kernel_profiles, published_fit, zoo
from harness.calibrate.published import cached_tokens, offline_batches, served_points
from harness.calibrate.published_fit import Measurements, mean_of, path_s, read, write_conf
from harness.calibrate.silicon import CHIPS, V1, Fitted, fit, offline_s, padded, steady_tpot_s
from harness.configuration.config import typed
from harness.configuration.options import plain
from harness.cost.hardware import Silicon
from harness.cost.served import EngineCosts, ServedCost
from harness.cost.silicon import stacked, work
from harness.errors import UsageError

LLAMA = "llama3.1-8b"


@pytest.fixture(scope="module")
def seen() -> Measurements:
    return read(None, None)


@pytest.fixture(scope="module")
def fitted(seen: Measurements) -> Fitted:
    return fit(seen.rows())


def test_offline_batches_are_possible_and_surely_fit() -> None:
    table = offline_batches()
    assert set(table.engine) == {"vllm_0.5", "tensorrt_llm"}
    assert set(table.device) == {"a100_40gb", "h100_sxm"}
    # A cell of the file has 2,048 tokens in 0.08 s: less than reading the weights as often.
    wrong = (table.model == "qwen2.5-7b") & (table.engine == "tensorrt_llm") & (table.tp == 1)
    assert table[wrong & (table.device == "h100_sxm")].output_len.max() == 1024
    big = (table.model == "llama2-7b") & (table.device == "a100_40gb") & (table.tp == 1)
    assert table[big].eval("batch * (input_len + output_len)").max() <= 0.8 * 48_000


def test_what_is_fitted_is_below_saturation_and_not_blis_held_out_set(seen: Measurements) -> None:
    points = seen.served
    used = points[seen.fitted]
    assert set(used.set) == {"kubecon", "kubecon_prefix", "trainval13"}
    assert used.capacity_per_s.isna().all()
    assert len(used) == 20
    assert points[points.gpu == "a100_sxm"].index.isin(used.index).sum() == 0


def test_a_stage_beyond_capacity_shows_it() -> None:
    points = served_points()
    clean = points[points.set == "kubecon"].set_index("stage").capacity_per_s
    assert clean[3:].dropna().between(105, 107).all()
    assert clean[:3].isna().all()
    assert clean.notna().sum() == 3


def test_a_prompt_seen_before_computes_what_is_after_its_last_whole_block() -> None:
    prompts = np.array([1.0, 16.0, 17.0, 32.0, 566.0])
    assert cached_tokens(prompts).tolist() == [0, 0, 16, 16, 560]


def test_graphs_pad_to_vllms_sizes() -> None:
    tokens = np.array([1.0, 3.0, 9.0, 257.0, 512.0, 513.0])
    assert padded(tokens).tolist() == [1, 4, 16, 272, 512, 513]


def costs_and_rows(fitted: Fitted, batch: int) -> tuple[ServedCost, object, dict]:
    hardware = replace(zoo.device("h100_sxm"), silicon=fitted.silicon("h100"))
    cost = ServedCost(zoo.model(LLAMA), hardware, fitted.costs(V1, 0.0))
    factor = fitted.engines[V1]["all_reduce"]
    kernels = stacked([work(zoo.model(LLAMA), hardware)]).on(fitted.silicon("h100"), factor)
    rows = {"input_len": 256.0, "batch": float(batch), "output_len": 64.0}
    return cost, kernels, {name: np.array([value]) for name, value in rows.items()}


@pytest.mark.parametrize("batch", [1, 5, 16])
def test_a_batch_takes_as_long_as_the_simulators_iterations(fitted: Fitted, batch: int) -> None:
    cost, kernels, rows = costs_and_rows(fitted, batch)
    found = offline_s(kernels, fitted.engines[V1], rows)[0]  # type: ignore[arg-type]
    simulated = cost.mixed_step([(0, 256)] * batch, 0, 0)
    simulated += sum(cost.decode_step(batch, batch * (256 + i))[0] for i in range(1, 64))
    assert found == pytest.approx(simulated, rel=1e-3)


def test_a_lone_stream_has_the_simulators_decode_steps(fitted: Fitted) -> None:
    cost, kernels, _ = costs_and_rows(fitted, 1)
    step_s = cost.decode_step(1, 256 + 32)[0]
    rows = {
        "prompt_tokens": 256.0, "output_tokens": 64.0, "rate_per_s": 1e-9, "tpot_mean_s": step_s,
        "prefix_caching": 0.0,
    }  # fmt: skip
    columns = {name: np.array([value]) for name, value in rows.items()}
    found = steady_tpot_s(kernels, fitted.engines[V1], columns)[0]  # type: ignore[arg-type]
    assert found == pytest.approx(step_s, rel=1e-6)


def test_constants_that_made_the_measurements_are_found_again(
    seen: Measurements, fitted: Fitted
) -> None:
    rows = seen.rows()
    for part in rows:
        part.seconds = part.predicted_s(fitted)
    again = fit(rows)
    errors = np.concatenate([np.abs(part.errors(again)) for part in rows])
    assert np.median(errors) < 0.005
    assert errors.max() < 0.08


def test_the_committed_constants_are_those_of_the_fit(seen: Measurements, fitted: Fitted) -> None:
    def same(found: object, kept: object) -> None:
        for name, value in asdict(found).items():  # type: ignore[call-overload]
            if name not in ("basis", "graph_tokens"):
                assert value == pytest.approx(getattr(kept, name), rel=0.02), name

    silicons = published_fit.silicons(fitted, None)
    for name, silicon in silicons.items():
        kept = typed(zoo.node(f"hardware/silicon/{name}.yaml"), Silicon, name)
        assert kept.basis == silicon.basis
        same(silicon, kept)
    kept = typed(zoo.node(f"engine/profile/{V1}.yaml")["costs"], EngineCosts, V1)
    same(fitted.costs(V1, path_s(fitted, seen.served)), kept)


def test_files_are_read_back_as_they_were_written(fitted: Fitted, tmp_path: Path) -> None:
    found = published_fit.silicons(fitted, None)
    costs = fitted.costs(V1, 0.019)
    write_conf(tmp_path / "silicon", tmp_path / "profile", found, costs)
    for name, silicon in found.items():
        node = plain(OmegaConf.load(tmp_path / "silicon" / f"{name}.yaml"))  # type: ignore[arg-type]
        kept = typed(node, Silicon, name)
        assert kept.products_efficiency == pytest.approx(silicon.products_efficiency, rel=1e-3)
    node = plain(OmegaConf.load(tmp_path / "profile" / f"{V1}.yaml"))  # type: ignore[arg-type]
    assert typed(node["costs"], EngineCosts, V1).graph_tokens == costs.graph_tokens


def test_offline_batches_are_met_within_the_target(seen: Measurements, fitted: Fitted) -> None:
    errors = [np.abs(np.expm1(r.errors(fitted))) for r in seen.rows() if r.kind == "offline"]
    assert np.median(np.concatenate(errors)) < 0.08


def test_a_model_or_chip_left_out_is_in_nothing(seen: Measurements) -> None:
    less = seen.without("model", "llama2-7b")
    assert "llama2-7b" not in {*less.offline.model, *less.prefill.model, *less.served.model}
    less = seen.without("chip", "h100")
    assert {r.chip for r in less.rows()} == {"a100"}
    assert {r.engine for r in less.rows()} == {"vllm_0.5", "tensorrt_llm", "eager"}


@pytest.mark.parametrize("device", kernel_profiles.BOARDS)
def test_a_boards_silicon_takes_its_profiles_kernel_times(device: str) -> None:
    profile = kernel_profiles.read(device)
    silicon = kernel_profiles.silicon(device, profile)
    kernels = work(zoo.model(LLAMA), zoo.device(device)).on(silicon, 1.0)
    names = [*kernel_profiles.PRODUCTS, *kernel_profiles.SMALL]
    small = profile.dense[list(kernel_profiles.SMALL)].sum(axis=1).iloc[0]
    tokens = np.array(silicon.products_tokens)
    measured = 32 * (profile.dense.loc[tokens, names].sum(axis=1) - small)
    assert kernels.products_s(tokens) == pytest.approx(measured.to_numpy(), rel=1e-6)
    cells = profile.attention[
        (profile.attention.n == 0) & (profile.attention.before == 0)
        & profile.attention.context.between(128, 8192)
    ]  # fmt: skip
    fixed_s = silicon.layer_s - small
    found = fixed_s + silicon.sequence_layer_s * cells.decodes
    found += float(kernels.context_s) / 32 * cells.decodes * cells.context
    assert (found / cells.seconds - 1).abs().mean() < 0.09


def test_devices_that_nobody_measured_have_the_geometric_mean() -> None:
    one = typed(zoo.node("hardware/silicon/h100.yaml"), Silicon, "h100")
    other = replace(one, kv_efficiency=one.kv_efficiency / 4)
    mean = mean_of([one, other])
    assert mean.kv_efficiency == pytest.approx(one.kv_efficiency / 2)
    assert mean.products_efficiency == pytest.approx(one.products_efficiency)
    assert mean.basis == "datasheet"


def test_every_gpu_of_the_zoo_has_silicon() -> None:
    bases = {name: zoo.device(name).silicon for name in zoo.names("hardware/device")}
    assert all(silicon is not None for silicon in bases.values())
    for name in ("h200_sxm", "b200_sxm", "l40s"):
        assert bases[name].basis == "datasheet"  # type: ignore[union-attr]
    assert set(CHIPS) <= set(bases)


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"measured\.csv"):
        read(tmp_path, None)
