"""Finding where curves end: bisection between the points that bound the end."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from math import log2
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from harness.errors import RunError
from harness.experiments import batch
from harness.experiments.capacity_search import Search, attained, middle, next_runs
from harness.experiments.compose import Composed
from harness.experiments.figure_progress import RunsProgress
from harness.experiments.points import Point

KEY, DRAW = "workload.dataset.parameters.num_models", "experiment/aegaeon/inputs@_global_"
VALUES = tuple(range(8, 82, 2))
SEARCHES = Search(KEY, VALUES, (DRAW,))


def point(folder: Path, system: str, models: int, draw: str, token: float | None) -> Point:
    """Refused where `token` is None."""
    words = {"system": system, DRAW: draw, KEY: str(models)}
    if token is None:
        return Point("e", words, 0, None, "no room")
    path = folder / f"{system}-{models}-{draw}"
    path.mkdir()
    (path / "summary.json").write_text(json.dumps({"slo_attainment": {"token": token}}))
    return Point("e", words, 0, path, "")


def test_the_next_runs_halve_each_curves_end_with_every_draw_of_it(tmp_path: Path) -> None:
    shares = {"good": {8: 1.0, 32: 0.95, 48: 0.7}, "bad": {8: 0.97, 32: 0.2, 48: 0.1}}
    points = [
        point(tmp_path, system, models, draw, token + 0.02 * (draw == "b"))
        for system, of_system in shares.items()
        for models, token in of_system.items()
        for draw in "ab"
    ]
    assert next_runs(points, SEARCHES) == [
        [["system=good", f"{DRAW}=a", f"{KEY}=40"], ["system=good", f"{DRAW}=b", f"{KEY}=40"]],
        [["system=bad", f"{DRAW}=a", f"{KEY}=20"], ["system=bad", f"{DRAW}=b", f"{KEY}=20"]],
    ]


def test_a_curve_may_end_by_requests_on_time(tmp_path: Path) -> None:
    points = []
    for models, request in {8: 1.0, 16: 0.8, 32: 0.2}.items():
        points.append(point(tmp_path, "s", models, "a", 1.0))
        attainment = {"slo_attainment": {"token": 1.0, "request": request}}
        (points[-1].folder / "summary.json").write_text(json.dumps(attainment))
    by_requests = Search(KEY, VALUES, (DRAW,), share="request")
    assert next_runs(points, by_requests) == [[["system=s", f"{DRAW}=a", f"{KEY}=12"]]]
    assert next_runs(points, SEARCHES) == []


def test_a_point_is_refused_only_where_every_draw_was(tmp_path: Path) -> None:
    points = [
        point(tmp_path, "muxserve", models, draw, token)
        for models, tokens in {32: (1.0, None), 48: (None, None)}.items()
        for draw, token in zip("ab", tokens, strict=True)
    ]
    assert attained(points, KEY) == {32: 1.0, 48: None}
    assert next_runs(points, SEARCHES)[0][0][-1] == f"{KEY}=40"


@pytest.mark.parametrize("found", [{8: 0.5, 16: 0.95, 32: 0.1}, {8: 1.0, 32: 0.9}, {}])
def test_a_curve_without_an_end_is_left_alone(found: dict[float, float | None]) -> None:
    assert middle(found, VALUES) is None


@given(capacity=st.floats(8, 79), grid=st.sets(st.sampled_from(VALUES), max_size=5))
def test_ends_are_found_to_between_neighbours_in_few_rounds(
    capacity: float, grid: set[int]
) -> None:
    def share(models: float) -> float:
        return 1.0 if models <= capacity else 0.5

    found: dict[float, float | None] = {n: share(n) for n in sorted({8, 80} | grid)}
    rounds = 0
    while (value := middle(found, VALUES)) is not None:
        assert value not in found
        found[value] = share(value)
        found = dict(sorted(found.items()))
        rounds += 1
    last = max(n for n, good in found.items() if good == 1.0)
    assert last <= capacity < last + 2
    assert min(n for n in found if n > last) == last + 2
    assert rounds <= log2(len(VALUES)) + 1


def test_every_curve_is_halved_to_its_end_as_its_runs_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capacities = {"good": 61, "bad": 23}

    def made(system: str, models: int, draw: str) -> Point:
        return point(tmp_path, system, models, draw, 1.0 if models <= capacities[system] else 0.5)

    other_ended = threading.Event()

    def run(experiment: str, made_of: None, words: list[str], *, again: bool) -> Point:
        values = dict(word.split("=", 1) for word in words)
        models = int(values[KEY])
        if values["system"] == "good" and values[DRAW] == "a":
            assert other_ended.wait(60), "a curve waits for another's runs"
        if (values["system"], models, values[DRAW]) == ("bad", capacities["bad"] + 1, "b"):
            other_ended.set()
        return made(values["system"], models, values[DRAW])

    monkeypatch.setattr(batch, "run_point", run)
    begun = [made(system, n, draw) for system in capacities for n in (8, 80) for draw in "ab"]
    words = [[f"{key}={value}" for key, value in p.overrides.items()] for p in begun]
    points = {"e": list(begun)}
    with ThreadPoolExecutor(4) as pool:
        runs = {"e": [(None, run) for run in words]}
        progress = RunsProgress(console=Console(quiet=True))
        makers = batch.Makers(pool, batch.Making(4), progress)
        batch.find_ends(points, {"e": SEARCHES}, runs, makers)  # type: ignore[arg-type]
    assert progress.line().startswith(f"{len(points['e']) - len(begun)} of ")
    added = [list(p.overrides.values()) for p in points["e"][len(begun) :]]
    assert added == sorted(added)
    for system, capacity in capacities.items():
        found = {int(p.overrides[KEY]) for p in points["e"] if p.overrides["system"] == system}
        assert {capacity - 1, capacity + 1} <= found
        assert all(
            {p.overrides[DRAW] for p in points["e"] if p.overrides[KEY] == str(n)} == {"a", "b"}
            for n in found
        )


def test_what_fails_in_one_experiment_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(experiment: str, made: Composed, words: list[str], *, again: bool) -> Point:
        if words == ["wrong=3"]:
            raise RunError("the disk is full")
        return Point(experiment, dict([words[0].split("=")]), 0, None, "no room")

    made = Composed({"engine": "sim"}, b"")
    words = {name: [[f"{name}={number}"] for number in range(5)] for name in ("wrong", "e", "f")}
    runs = {name: [(made, run) for run in of_name] for name, of_name in words.items()}
    monkeypatch.setattr(batch, "run_point", run)
    monkeypatch.setattr(batch, "processes", ThreadPoolExecutor)
    monkeypatch.setattr(batch, "composed_runs", lambda *_: runs)
    progress = RunsProgress(console=Console(quiet=True))
    searches = {"e": Search("e", VALUES)}
    found = dict(batch.run_all(list(runs), searches, batch.Making(2), progress))
    assert isinstance(found["wrong"], RunError)
    assert list(found) == ["wrong", "f", "e"], "those of searches last"
    assert [len(found[name]) for name in ("e", "f")] == [5, 5]  # type: ignore[arg-type]
    assert progress.line().startswith("15 of 15 runs")
