"""The profiler's files: experiments take their rates from them, and from nowhere else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from harness.configuration import resolvers
from harness.configuration.options import plain
from harness.errors import UsageError
from plots.aqua.placement import PROFILES
from plots.aqua_profiles import MAKE
from systems.aqua.profiler.profile import MemoryProfile, read_profile, write_profile
from tests.running import ROOT, composed

OWN = ("aqua_fig01", "aqua_fig08", "aqua_fig13", "aqua_swap")
LENDERS = ("aqua_fig10", "aqua_fig11", "aqua_fig12")


ENGINES = ("eager_2024", "vllm_v1")
TOLD = "^conf/system/aqua/profiles/eager_2024/llama3.1-8b-tp1-h200x8-"


def arrivals(experiment: str, engine: str) -> dict[str, Any]:
    words = (f"+experiment={experiment}", f"engine.profile={engine}")
    made: dict[str, Any] = plain(composed(*words).workload)
    found: dict[str, Any] = made["parts"]["llama"] if "parts" in made else made
    return dict(found["arrivals"])


def profiled(experiment: str, engine: str) -> Path:
    config = composed(f"+experiment={experiment}")
    lender = experiment in LENDERS
    spec = config.system.lender.model if lender else config.model
    workload = "sharegpt" if lender else config.workload.name
    return PROFILES / engine / f"{spec.name}-tp{spec.tp}-{config.hardware.name}-{workload}.json"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("experiment", [*OWN, *LENDERS])
def test_an_experiment_runs_at_the_rate_in_its_models_file(
    experiment: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of its engine profile."""
    path = profiled(experiment, engine)
    found = read_profile(path)
    assert arrivals(experiment, engine)["rate_per_s"] == found.stable_rate_per_s
    found.stable_rate_per_s = 0.7
    moved = tmp_path / path.relative_to(resolvers.CONF)
    moved.parent.mkdir(parents=True)
    write_profile(moved, found)
    monkeypatch.setattr(resolvers, "CONF", tmp_path)
    made = arrivals(experiment, engine)
    assert made["rate_per_s"] == 0.7
    if experiment in OWN:
        assert made["burst"]["start_s"] == pytest.approx(25 / 0.7, abs=0.001)


def test_every_file_is_a_profile_of_what_its_name_says() -> None:
    paths = [path for each in ENGINES for path in sorted((PROFILES / each).iterdir())]
    folders = {path.name for path in PROFILES.iterdir()}
    assert folders == {*ENGINES, "generators"}  # those of image and audio models have no engine
    for path in paths:
        found: MemoryProfile = read_profile(path)
        assert found.workload is not None
        assert path.stem == found.name
        assert found.made_by["engine_profile"] == path.parent.name
        assert len(found.made_by["seeds"]) == 5
        assert found.rule in ("SLA", "steady queue")
        assert found.made_by["command"] == MAKE
        assert found.made_by["runs"]


def test_what_was_not_profiled_is_refused_in_one_sentence() -> None:
    with pytest.raises(UsageError, match=TOLD):
        plain(composed("+experiment=aqua_fig10", "hardware=h200x8").workload)


def test_no_resolver_names_a_system() -> None:
    systems = {path.name for path in (ROOT / "systems").iterdir() if path.is_dir()}
    for path in (ROOT / "harness/configuration").glob("*.py"):
        words = set(re.findall(r"[a-z_]+", path.read_text().lower()))
        assert not words & (systems - {"serving", "baselines"}), path


@pytest.mark.parametrize("rate", [0.0, -1.0])
def test_nothing_arrives_at_no_rate(rate: float) -> None:
    with pytest.raises(UsageError, match="must be above 0"):
        resolvers.seconds_for(25, rate)
