"""Each row of a figure's CSV names the runs that it comes from, and whether they were VALID."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pandas as pd
import pytest

from harness.claims.assess import runs_of
from harness.experiments.lineage import add, origins
from harness.experiments.points import Point
from tests.unit.metrics.service import Service, steady, write_run


def points(folder: Path) -> list[Point]:
    """Two seeds of each of two systems, the last run INVALID, and a run that was refused."""
    made = []
    for number, (system, seed) in enumerate([("a", 0), ("a", 1), ("b", 0), ("b", 1)]):
        service = steady(20)
        if number == 3:
            service = Service((0.0, 5))
            service.send(0)
            service.fail(0)
        path = write_run(folder / f"run-{number}", service, system=system)
        manifest = json.loads((path / "manifest.json").read_text())
        manifest |= {"config_hash": f"hash{number}", "schedule_sha256": f"{seed}" * 64}
        (path / "manifest.json").write_text(json.dumps(manifest))
        made.append(Point("exp", {"some.rate": "0.50"}, seed, path, ""))
    return [*made, Point("exp", {"some.rate": "1"}, 0, None, "no room")]


def rows(folder: Path, text: str) -> list[dict[str, str]]:
    path = folder / "figure.csv"
    path.write_text(text)
    add(path, origins(points(folder)))
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_rows_name_their_runs_and_keep_their_values(tmp_path: Path) -> None:
    found = rows(
        tmp_path,
        "system,seed,rate,value,against\n"
        "a,0,0.5,1.50,\n"  # one run
        'b,,,"x, y",\n'  # over seeds, one INVALID
        "a,1,,2,b\n"  # one run against another
        ",,,3,\n"  # of no run
        "c,0,,4,\n",  # named as no run is: by its seed alone
    )
    assert [row["value"] for row in found] == ["1.50", "x, y", "2", "3", "4"]
    assert [row["config_hash"] for row in found] == [
        "hash0", "hash2 hash3", "hash1 hash3", "", "hash0 hash2",
    ]  # fmt: skip
    assert [row["verdict"] for row in found] == [
        "VALID",
        "INVALID VALID",
        "INVALID VALID",
        "",
        "VALID",
    ]
    assert [row["schedule_sha256"] for row in found[:2]] == ["0" * 12, f"{'0' * 12} {'1' * 12}"]


def test_a_row_that_says_its_hash_is_believed(tmp_path: Path) -> None:
    (found,) = rows(tmp_path, "seed,config_hash,value\n0,hash3,1\n")
    assert (found["config_hash"], found["verdict"]) == ("hash3", "INVALID")
    assert list(found) == ["seed", "value", "config_hash", "schedule_sha256", "verdict"]


def test_many_runs_are_named_by_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.experiments.lineage.MAX_NAMED", 3)
    path = tmp_path / "figure.csv"
    path.write_text("system,rate,value\n,0.5,1\na,0.5,2\n")
    ((key, hashes),) = add(path, origins(points(tmp_path))).items()
    table = pd.read_csv(path)
    assert list(table.config_hash) == [key, "hash0 hash1"]
    assert hashes == ["hash0", "hash1", "hash2", "hash3"]
    source = {"runs": dict.fromkeys([*hashes, "another"]), "sets": {key: hashes}}
    assert runs_of(table, source) == hashes


def test_a_row_of_no_run_says_why(tmp_path: Path) -> None:
    found = rows(tmp_path, "system,refused,inputs,value\na,,paper,1\nc,True,,\n")
    assert [(row["config_hash"], row["verdict"]) for row in found] == [
        ("", "no run"),
        ("", "refused"),
    ]


def test_the_figures_json_tells_the_folder_of_a_hash(tmp_path: Path) -> None:
    told = {run.config_hash: run.told() for run in origins(points(tmp_path))}
    assert told["hash3"] == f"run-3, schedule {'1' * 64}, INVALID"
    assert len(told) == 4


def test_what_was_swept_tells_runs_of_one_system_apart(tmp_path: Path) -> None:
    """As BlitzScale's parts are: all are `system=blitzscale`, and one is called so."""
    made = []
    for number, (system, called) in enumerate(
        [("blitzscale", "blitzscale"), ("blitzscale", "network"), ("vllm", "half")]
    ):
        path = write_run(tmp_path / f"run-{number}", steady(20), system=system)
        manifest = json.loads((path / "manifest.json").read_text())
        manifest |= {"config_hash": f"hash{number}", "schedule_sha256": "0" * 64}
        (path / "manifest.json").write_text(json.dumps(manifest))
        key = "experiment/blitzscale/system@_global_"
        made.append(Point("exp", {key: called}, 0, path, ""))
    path = tmp_path / "figure.csv"
    path.write_text("system,against,value\nblitzscale,,1\nnetwork,,2\nblitzscale,half,3\nvllm,,4\n")
    add(path, origins(made))
    with path.open(newline="") as file:
        found = [row["config_hash"] for row in csv.DictReader(file)]
    assert found == ["hash0", "hash1", "hash0 hash2", "hash2"]
