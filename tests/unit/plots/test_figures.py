"""Every figure's experiments compose point by point, and figures are drawn from small tables."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hydra import compose
from omegaconf import OmegaConf, open_dict
from omegaconf.errors import InterpolationResolutionError

from harness.configuration.options import plain
from harness.errors import RunError
from harness.experiments.batch import Making, composed_runs
from harness.experiments.compose import CONF, QUIET, composed, groups, sweep
from harness.experiments.figures import described, drawn, figures, main, only_simulated, provenance
from harness.experiments.points import Point, by_key, load_points, save_points
from plots.aegaeon.attainment import attainment
from plots.aegaeon.motivation import M, active, expected
from plots.aegaeon.switches import around_median, split
from plots.aegaeon.usage import over_time
from plots.kunserve.runs import POINT, SYSTEM
from plots.runs import overrides
from plots.style import figure
from tests.unit.metrics.service import steady, write_run


def test_a_figure_names_experiments_that_there_are() -> None:
    for experiment in {each for name in figures() for each in described(name).experiments}:
        assert (CONF / "experiment" / f"{experiment}.yaml").is_file(), experiment


def test_overrides_of_simulated_runs_leave_live_ones_out() -> None:
    with ThreadPoolExecutor(1) as pool:
        making = Making(1, simulated=["engine.profile=vllm_v1"])
        runs = composed_runs(["aegaeon_fig07", "aegaeon_fig01"], pool, making)
    assert list(runs) == ["aegaeon_fig01"]
    ((made, run),) = runs["aegaeon_fig01"]
    engine = made.configured(run).engine
    assert engine.profile == "vllm_v1"
    assert engine.costs is not None
    assert not only_simulated("aegaeon_fig07")
    assert only_simulated("aegaeon_fig01")


def test_of_a_sweep_only_the_first_seeds_are_run_if_so_told() -> None:
    with ThreadPoolExecutor(1) as pool:
        names = ["kunserve_fig10_migration", "aegaeon_fig01"]
        runs = composed_runs(names, pool, Making(1, seeds=2))
    seeds = {word for _, run in runs["kunserve_fig10_migration"] for word in run if "seed" in word}
    assert seeds == {"seed=0", "seed=1"}
    assert len(runs["kunserve_fig10_migration"]) == 4
    assert len(runs["aegaeon_fig01"]) == 1  # sweeps no seed


def test_of_an_experiment_only_the_runs_that_a_figure_has_are_made() -> None:
    name, keys = "kunserve_regime", (POINT, SYSTEM)
    only = [{POINT: ("gb33", "none")}, {POINT: ("gb9",), SYSTEM: ("kunserve",), "other": ("x",)}]
    with ThreadPoolExecutor(1) as pool:
        runs = composed_runs([name], pool, Making(1, seeds=1, only={name: only}))[name]
    pairs = [by_key(run) for _, run in runs]
    places = {tuple(each[key] for key in keys) for each in pairs}
    assert len(places) == len(runs) == 5
    assert ("gb9", "kunserve") in places
    assert {place for place, _ in places} == {"gb33", "gb9"}


def test_a_seed_may_be_that_of_an_option() -> None:
    with ThreadPoolExecutor(1) as pool:
        runs = composed_runs(["aegaeon_fig13"], pool, Making(1, seeds=1))["aegaeon_fig13"]
    inputs = {word for _, run in runs for word in run if "inputs" in word}
    assert inputs == {"experiment/aegaeon/inputs@_global_=published"}
    assert len(runs) == 15


def test_a_number_of_seeds_below_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kunserve_table1", "--seeds", "0"]) == 2
    assert "--seeds 0 must be at least 1" in capsys.readouterr().err


def test_a_point_of_kunserve_has_each_engine_profile_at_its_own_rate() -> None:
    words = ["experiment/kunserve/point@_global_=gb9"]
    made = composed(["+experiment=kunserve_regime", *words])
    rates = {
        profile: made.configured([*words, f"engine.profile={profile}"]).workload.scale.rate
        for profile in ("eager_2024", "vllm_v1")
    }
    assert rates["vllm_v1"] > rates["eager_2024"]


def test_a_value_of_a_profile_that_has_none_is_refused() -> None:
    config = OmegaConf.create(
        {"engine": {"profile": "vllm_v1"}, "rate": "${of_profile:{eager_2024:2.0}}"}
    )
    with pytest.raises(
        InterpolationResolutionError, match="vllm_v1 has no value here; profiles: eager_2024"
    ):
        _ = config.rate


def test_a_sweep_is_the_product_of_its_values() -> None:
    engine, points = sweep("aegaeon_fig13")
    assert len({tuple(point) for point in points}) == len(points) == 3 * 5 * 5
    assert engine == "sim"
    assert sweep("aegaeon_fig01") == ("sim", [[]])


@pytest.mark.parametrize("name", ["aegaeon_fig11a_bandwidth", "aegaeon_fig13", "aegaeon_fig07"])
def test_a_point_is_configured_as_hydra_would(name: str) -> None:
    run = sweep(name)[1][-1]
    made = composed([f"+experiment={name}", *groups(run)])
    words = [f"+experiment={name}", *run, *QUIET]
    asked = compose("config", overrides=words, return_hydra_config=True)
    assert made.choices == asked.hydra.runtime.choices
    with open_dict(asked):
        del asked["hydra"]
    assert plain(made.configured(run)) == plain(asked)


def test_runs_of_one_choice_of_groups_are_composed_once() -> None:
    with ThreadPoolExecutor(1) as pool:
        runs = composed_runs(["aegaeon_fig14_rates", "aegaeon_fig18_small"], pool, Making(1))
    for name, of_name in runs.items():
        assert [overrides for _, overrides in of_name] == sweep(name)[1]
        made = {groups(overrides): id(one) for one, overrides in of_name}
        assert len(set(made.values())) == len(made) == len({id(one) for one, _ in of_name})


def test_what_is_overridden_is_live_runs_alone() -> None:
    gpu = "experiment/aegaeon/machine@_global_=gpu"
    with ThreadPoolExecutor(1) as pool:
        runs = composed_runs(["aegaeon_fig07", "aegaeon_fig07_sim"], pool, Making(1, [gpu]))
    for made, run in runs["aegaeon_fig07"]:
        assert run[-1] == gpu
        assert (made.choices["hardware"], made.choices["model_set"]) == ("h100_shared", "billions")
        assert made.configured(run).engine.device == "cuda"
    assert [run for _, run in runs["aegaeon_fig07_sim"]] == sweep("aegaeon_fig07_sim")[1]


def test_an_overridden_figure_does_not_replace_the_published(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["aegaeon_fig07", "hardware=local_x2"]) == 2
    assert "needs --out" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["hardware=nothing", "nothing=1", "engine.device=", "a b=1"])
def test_an_override_that_cannot_be_is_told(
    wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["aegaeon_fig10", wrong, "--out", str(tmp_path)]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("error: ")
    assert not list(tmp_path.iterdir())


def test_overrides_go_by_the_last_part_of_their_keys() -> None:
    given = {"experiment/aegaeon/system@_global_": "muxserve", "a.b.num_models": "8", "c.r": "0.5"}
    point = Point("e", given, 0, None, "no room")
    assert overrides(point) == {"system": "muxserve", "num_models": 8, "r": 0.5}


def test_an_unknown_figure_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["aegaeon_fig99"]) == 2
    assert (
        "no figure is called aegaeon_fig99; there are aegaeon_factors, " in capsys.readouterr().err
    )
    with pytest.raises(Exception, match="has not been run"):
        load_points("no_such_experiment")


def test_attainment_is_in_per_cent_and_its_end_is_marked() -> None:
    rows = pd.DataFrame(
        {"num_models": [8, 16, 8, 16], "token": [1.0, 0.8, 0.9, 0.7], "seed": [0, 0, 1, 1]}
    )
    more = pd.concat([rows, pd.DataFrame({"num_models": [32], "token": [0.2], "seed": [0]})])
    _, (axes,) = figure(1, 1, width=3, height=2)
    attainment(axes, more.assign(system="aegaeon"))
    line = next(line for line in axes.lines if line.get_label() == "Aegaeon")
    assert np.asarray(line.get_ydata()).tolist() == pytest.approx([95.0, 75.0, 20.0])
    assert np.asarray(axes.lines[-1].get_xdata()).tolist() == pytest.approx([10.0, 10.0])


def test_theorem_3_1_is_the_mean_of_its_simulation() -> None:
    mean = np.mean([active(seed, np.arange(0, 2000.0)).mean() for seed in range(5)])
    assert mean == pytest.approx(expected(M, 0.037, 16.79), rel=0.02)


def device_events(*rows: tuple[str, float, float]) -> pd.DataFrame:
    found = pd.DataFrame(rows, columns=["kind", "start_s", "end_s"])
    return found.assign(instance="i", phase="decode", before="a", model="b")


def test_a_switch_is_split_by_what_goes_on_first() -> None:
    found = device_events(
        ("run", 0, 1), ("swap_out", 1, 3), ("load", 2, 5), ("swap_in", 4, 7), ("switch", 1, 8)
    )
    switch = next(found[found.kind == "switch"].itertuples())
    parts = split(found, switch)
    assert {part: s for part, s in parts.items() if s} == {
        "swap_out": 1.0, "load": 3.0, "swap_in": 2.0, "other": 1.0,
    }  # fmt: skip


def test_the_median_switch_is_drawn_with_what_is_around_it() -> None:
    found = device_events(
        ("run", 0, 1), ("switch", 1, 2), ("swap_out", 1.5, 1.7), ("run", 2, 3), ("switch", 3, 13),
        ("swap_out", 3, 4), ("run", 13, 14), ("switch", 14, 44), ("swap_out", 15, 40),
        ("run", 44, 90), ("switch", 90, 95), ("run", 95, 96),
    )  # fmt: skip
    shown = around_median(found)
    assert shown.switch_s.tolist() == [10.0] * 6
    assert shown.start_s.tolist() == [-3.0, -1.5, -1.0, 0.0, 10.0, 12.0]
    assert shown.end_s.tolist() == pytest.approx([-2.0, -1.3, 0.0, 1.0, 11.0, 13.0])


def test_a_run_that_preempts_nothing_shows_no_switch_of_fig_7() -> None:
    found = device_events(("run", 0, 1), ("switch", 1, 2), ("run", 2, 3), ("swap_out", 3, 4))
    with pytest.raises(RunError, match="no switch of this run saves KV"):
        around_median(found)


def test_fragmentation_is_a_mean_over_time() -> None:
    # (node, seconds, share): 0.5 for 1 s, then 0.1 for 9 s; beside it 0.9 for 2 s
    rows = [("n0", 0, 0.5), ("n0", 1, 0.1), ("n0", 10, 0.7), ("n1", 4, 0.9), ("n1", 6, 0.0)]
    samples = pd.DataFrame(rows, columns=["node", "start_s", "fragmentation"])
    found = over_time(samples.assign(num_models=16, seed=0, shape="overall"))
    assert found["mean"].item() == pytest.approx((0.5 * 1 + 0.1 * 9 + 0.9 * 2) / 12)
    assert found["max"].item() == 0.9


def test_a_figure_with_an_invalid_run_is_not_drawn(tmp_path: Path) -> None:
    path = write_run(tmp_path / "late", steady(5))
    summary = json.loads((path / "summary.json").read_text())
    verdict = {"status": "INVALID", "reasons": ["the client was late"]}
    (path / "summary.json").write_text(json.dumps(summary | {"verdict": verdict}))
    points = [Point("aegaeon_fig01", {}, 0, each, "") for each in (path, None)]
    save_points("aegaeon_fig01", points, tmp_path)
    refused = drawn("aegaeon_fig01", git=None, out=tmp_path)
    assert isinstance(refused, RunError)
    words = f"aegaeon_fig01 is not drawn: {path} is INVALID: the client was late"
    assert str(refused).startswith(words)
    assert not list(tmp_path.glob("*.csv"))


def test_runs_that_were_made_again_for_they_were_invalid_are_counted(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", steady(5), engine_name="torch")
    reasons = ("it was INVALID: the client was late", f"{path} is of other sources", "")
    points = [Point("e", {}, 0, path, "", again) for again in reasons]
    assert provenance([*points, Point("e", {}, 0, None, "no room")])["num_invalid"] == 1
