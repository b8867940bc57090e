"""The published examples of `compare`: each says what it is of, and the page has its table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from harness.files import read_json
from tests.benchmarks.compare_examples import EXAMPLES, OUT, are_those, page
from tests.unit.metrics.service import steady, write_run

MADE = {path.stem: read_json(path) for path in sorted(OUT.glob("*.json"))}


def test_the_simulated_example_is_there_and_the_page_is_of_what_is() -> None:
    assert "aegaeon" in MADE
    assert MADE.keys() <= EXAMPLES.keys()
    assert (OUT / "examples.md").read_text() == page(
        [MADE[name] for name in EXAMPLES if name in MADE]
    )


def test_an_example_is_drawn_of_its_own_runs_alone(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", steady(5))
    told = {"run": "a", "ended_utc": read_json(path / "manifest.json")["ended_utc"]}
    assert are_those(tmp_path, [told])
    assert not are_those(tmp_path, [told | {"ended_utc": "earlier"}])
    assert not are_those(tmp_path, [told, told | {"run": "b"}])


@pytest.mark.parametrize("name", MADE)
def test_an_example_names_configuration_revision_hardware_and_seeds(name: str) -> None:
    example, made = EXAMPLES[name], MADE[name]
    assert [run["run"] for run in made["runs"]] == [*example.runs]
    for run, words in zip(made["runs"], example.runs.values(), strict=True):
        assert re.fullmatch("[0-9a-f]{12}", run["config_hash"])
        assert re.fullmatch("[0-9a-f]{64}", run["schedule_sha256"])
        assert re.fullmatch("[0-9a-f]{40}", run["git"]["revision"])
        assert not run["git"]["dirty"]
        assert {"name", "device", "num_devices"} <= run["hardware"].keys()
        assert run["machine"]["cpu"]
        assert isinstance(run["seeds"]["seed"], int)
        assert set(words) <= set(run["command"])
        assert run["simulated"] == (example.repeats == 0)
        assert run["verdict"] == "VALID"
    assert "picture" not in made or (OUT / made["picture"]).is_file()
    floor: dict[str, Any] | None = made["noise_floor"]
    assert (len(floor["repeats"]) if floor else 0) == example.repeats
    assert {row["metric"] for row in made["rows"]} >= {"TTFT mean", "goodput/s", "tokens/s"}
    assert all(row["low"] <= row["high"] and row["verdict"] for row in made["rows"])


def test_systems_were_compared_over_five_seeds_on_equal_schedules() -> None:
    runs = MADE["aegaeon"]["runs"]
    by_seed: dict[int, set[str]] = {}
    for run in runs:
        by_seed.setdefault(run["seeds"]["seed"], set()).add(run["schedule_sha256"])
    assert sorted(by_seed) == [0, 1, 2, 3, 4]
    assert all(len(schedules) == 1 for schedules in by_seed.values())


def test_the_same_live_run_twice_is_neither_better_nor_worse() -> None:
    assert {row["verdict"].split(" (")[0] for row in MADE["aa"]["rows"]} == {"cannot tell"}
    assert {"better", "worse"} & {row["verdict"] for row in MADE["ab"]["rows"]}
