"""`python -m harness reproduce`: figures and claims again, beside the committed ones."""

import json
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import harness.reproduce.__main__ as reproduce
from harness.claims.assess import figure_table
from harness.errors import RunError
from harness.experiments import figures
from harness.experiments.batch import Making
from harness.experiments.figures import described, make_runs, published
from harness.experiments.points import Point
from harness.reproduce import holding, report, times
from harness.reproduce.__main__ import made_again, main
from harness.reproduce.asked import SMOKE_FIGURE, asked, live_versions
from harness.reproduce.holding import DIFFERENT, FAILED, SAME, UNTOLD, Row


def test_papers_figures_and_claims_are_named_as_elsewhere() -> None:
    names, claims, _ = asked(["kunserve_table1"], "full")
    assert names == ["kunserve_table1"]
    assert {claim.figure for claim in claims} == {"kunserve_table1"}
    names, (claim,), _ = asked(["kunserve/abstract-tail"], "full")
    assert names == [claim.figure]
    everything, _, _ = asked(["aegaeon"], "full")
    assert "aegaeon_fig11" in everything
    assert all(name.startswith("aegaeon_") for name in everything)


def test_the_quick_tier_of_a_paper_has_the_figures_that_claims_rest_on() -> None:
    every, quick = (set(asked([], tier)[0]) for tier in ("full", "quick"))
    assert {"aegaeon_fig11", "blitzscale_fig17", "kunserve_fig10", "aqua_fig08"} <= quick < every
    assert "blitzscale_load_fleets" not in quick, "no claim rests on it"
    slow = {name for name in every if not described(name).quick}
    assert slow
    assert not slow & quick
    _, claims, left = asked([], "quick")
    assert left.keys() <= slow
    assert sum(left.values()) + len(claims) == len(asked([], "full")[1])
    for name in slow:
        assert asked([name], "quick")[0] == [name], "a figure that is named is made"


def test_figures_come_as_their_runs_are_there_and_each_experiment_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: list[str] = []

    def run_all(names: list[str], *_: object) -> Iterator[tuple[str, list[Point] | RunError]]:
        for name in names:
            asked_for.append(name)
            made = [Point(name, {}, 0, tmp_path, "")]
            yield name, RunError("no room") if name == "kunserve_roomy" else made

    monkeypatch.setattr(figures, "run_all", run_all)
    names = ["kunserve_fig11", "aegaeon_fig16", "aegaeon_fig14", "kunserve_table1"]
    for name, error in make_runs([*names, "kunserve_regime"], Making(1), tmp_path, "quick"):
        assert set(described(name).experiments) <= set(asked_for)
        assert (name == "kunserve_regime") == (error is not None)
        names = [each for each in names if each != name]
    assert not names
    assert len(asked_for) == len(set(asked_for)) == 6


def test_what_ends_all_runs_is_tried_again_figure_by_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(names: list[str], *_: object) -> Iterator[tuple[str, None]]:
        yield names[0], None
        if len(names) > 1:
            raise RunError("a process that made runs was killed")

    drawn_as(monkeypatch, [[], [], []])
    monkeypatch.setattr(reproduce, "make_runs", make)
    names = ["kunserve_table1", "kunserve_fig11", "kunserve_table2"]
    found = [row.name for row in made_again(names, Making(1), "quick", tmp_path)]
    assert found == names


def drawn_as(monkeypatch: pytest.MonkeyPatch, results: list[list[Path] | RunError]) -> None:
    """What drawing each figure comes to, whose tables then are as committed."""
    found = iter(results)
    monkeypatch.setattr(reproduce, "drawn", lambda *_, **__: next(found))
    monkeypatch.setattr(reproduce, "note", lambda *_: None)
    monkeypatch.setattr(holding, "figure_held", lambda name, *_, **__: Row("figure", name, SAME))


def test_the_smoke_tier_has_a_figure_with_claims_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names, claims, _ = asked([], "smoke")
    assert names == [SMOKE_FIGURE]
    assert {claim.figure for claim in claims} == {SMOKE_FIGURE}
    assert main(["aqua", "--tier", "smoke"]) == 2
    assert "aqua: --tier smoke has its own figure" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("kunserv", "kunserv names no paper, figure or claim; valid: aegaeon, aqua"),
        ("kunserve/no", "kunserve/no names no claim"),
        ("nobody/no", "nobody/no names no claim"),
    ],
)
def test_a_word_that_names_nothing_is_told(
    capsys: pytest.CaptureFixture[str], word: str, said: str
) -> None:
    assert main([word]) == 2
    assert said in capsys.readouterr().err


def test_no_jobs_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["aqua", "--jobs", "0"]) == 2
    assert "--jobs 0 must be at least 1" in capsys.readouterr().err


def into(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command writes instead of results/; it tells paths below ROOT."""
    monkeypatch.chdir(folder)  # the command changes it, and is undone here
    monkeypatch.setattr(reproduce, "ROOT", folder)
    monkeypatch.setattr(reproduce, "REPRODUCED", folder / "reproduced")
    there = folder / "times.json"
    monkeypatch.setattr(reproduce, "last_times", lambda: times.last_times(there))
    monkeypatch.setattr(reproduce, "note", partial(times.note, path=there))
    return folder / "reproduced" / "quick"


def test_a_figure_is_made_beside_the_committed_one_and_held_against_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = into(tmp_path, monkeypatch)
    assert main(["kunserve_table1"]) == 0
    page = (out / "report.md").read_text()
    assert "Verdict: nothing differs (" in page
    assert "| figure | kunserve_table1 | the same |" in page
    assert "| claim | kunserve/" in page
    assert (out / "kunserve_table1.png").is_file()
    assert times.last_times(tmp_path / "times.json")["figures"]["kunserve_table1"] > 0
    assert "Verdict: nothing differs" in capsys.readouterr().out


def test_a_wrong_table_of_no_runs_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    into(tmp_path, monkeypatch)
    name = "kunserve_table1"
    table = figure_table(published(name) / f"{name}.csv")
    wrong = table.assign(value=table.value.where(table.index != 0, 2 * table.value))
    wrong.to_csv(tmp_path / f"{name}.csv", index=False)
    monkeypatch.setattr(holding, "published", lambda _: tmp_path)
    assert main([name]) == 1
    page = (tmp_path / "reproduced/quick/report.md").read_text()
    assert "| figure | kunserve_table1 | different | value, by up to 50.0% |" in page


def test_a_figure_that_fails_does_not_stop_the_others_nor_is_judged_by_an_older_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = into(tmp_path, monkeypatch)
    assert main(["kunserve_table1"]) == 0
    whole = make_runs

    def broken(names: list[str], *rest: Any) -> Iterator[tuple[str, Exception | None]]:
        for name, error in whole(names, *rest):
            yield name, RunError("the disk is full") if name == "kunserve_table1" else error

    monkeypatch.setattr(reproduce, "make_runs", broken)
    assert main(["kunserve_table1", "kunserve_table2"]) == 1
    page = (out / "report.md").read_text()
    assert "| figure | kunserve_table1 | failed | the disk is full |" in page
    assert "| figure | kunserve_table2 | the same |" in page
    named = {claim.id for claim in asked(["kunserve_table1"], "full")[1]}
    assert named
    assert not any(f"| claim | kunserve/{name} |" in page for name in named)


def test_the_report_keeps_what_earlier_commands_made_each_row_with_its_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = into(tmp_path, monkeypatch)
    for letter, name in ("a", "kunserve_table1"), ("b", "kunserve_table2"):
        git = {"revision": 8 * letter, "dirty": False}
        monkeypatch.setattr(report, "git_revision", lambda git=git: git)
        assert main([name]) == 0
    page = (out / "report.md").read_text()
    assert "| figure | kunserve_table1 | the same |  | quick, aaaaaaaa |" in page
    assert "| figure | kunserve_table2 | the same |  | quick, bbbbbbbb |" in page
    assert "kunserve_table1\n" in capsys.readouterr().err, "beforehand: what will be made"


def test_what_a_command_leaves_out_or_does_not_judge_replaces_no_row_but_old_claims_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = [Row("figure", "a", DIFFERENT), Row("claim", "p/b", SAME), Row("claim", "p/c", SAME)]
    monkeypatch.setattr(report, "git_revision", lambda: None)
    report.write(tmp_path, earlier)
    report.write(tmp_path, [], [Row("figure", "a", UNTOLD)], {"p/b"})
    assert [(row.name, row.outcome) for row in report.read(tmp_path)] == [
        ("a", DIFFERENT), ("p/c", SAME)
    ]  # fmt: skip


def test_keys_that_another_version_wrote_into_a_report_are_passed_over(tmp_path: Path) -> None:
    row = {"what": "figure", "name": "a", "outcome": SAME, "minutes": 3}
    (tmp_path / "report.json").write_text(json.dumps({"rows": [row]}))
    assert report.read(tmp_path) == [Row("figure", "a", SAME)]


def test_a_command_that_is_ended_keeps_the_figures_that_it_made_and_those_of_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = into(tmp_path, monkeypatch)

    def made(*_: object) -> Iterator[Row]:
        yield Row("figure", "aqua_fig08", SAME)
        report.write(out, [Row("figure", "beside", DIFFERENT)])
        yield Row("figure", "aqua_fig09", SAME)
        raise SystemExit

    monkeypatch.setattr(reproduce, "made_again", made)
    with suppress(SystemExit):
        main(["aqua_fig08"])
    found = {row.name: row.outcome for row in report.read(out)}
    assert found == {"aqua_fig08": SAME, "beside": DIFFERENT, "aqua_fig09": SAME}


def test_live_versions_are_chosen_by_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    into(tmp_path, monkeypatch)
    names, claims = live_versions(*asked(["blitzscale_fig21"], "full")[:2], "torch")
    assert names == ["blitzscale_fig21_live"]
    assert {claim.figure for claim in claims} == set(names)
    of_paper, _ = live_versions(*asked(["kunserve"], "full")[:2], "sim")
    assert of_paper == ["kunserve_fig14_live", "kunserve_fig15_live"]
    assert main(["kunserve_fig10", "--world", "torch"]) == 2
    assert main(["kunserve_fig15", "--world", "vllm"]) == 2
    one, other = capsys.readouterr().err.splitlines()
    assert one.startswith("error: kunserve_fig10: no version on torch; figures that have one: ")
    assert "kunserve_fig15_live (torch)" in one
    assert other.startswith("error: kunserve_fig15: no version on vllm; figures that have one: ")
    assert other.endswith("aqua_fig01 (aqua_vllm_burst)")
    assert not (tmp_path / "reproduced").exists()


def test_a_profile_of_hardware_has_the_live_figures_and_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    into(tmp_path, monkeypatch)
    made: list[tuple[str, list[str], Path]] = []

    def make(names: list[str], making: Making, out: Path, *_: object) -> None:
        made.append((names[0], list(making.live), out))
        raise RunError("no such device")

    monkeypatch.setattr(reproduce, "make_runs", make)
    folder = tmp_path / "reproduced" / "h100x8"
    assert main(["blitzscale_fig21", "--hardware", "h100x8"]) == 1
    assert made == [("blitzscale_fig21_live", ["hardware=h100x8"], folder)]
    assert "h100x8, " in (folder / "report.md").read_text()
    assert main(["blitzscale_fig21", "--hardware", "h100x9"]) == 2
    assert "--hardware h100x9 does not exist; choose one of: " in capsys.readouterr().err
    assert main(["--world", "torch", "--tier", "smoke"]) == 2


@pytest.mark.parametrize(
    ("figure", "needs"), [("kunserve_fig14_live", 2), ("blitzscale_fig21_live", 4)]
)
def test_a_profile_with_fewer_devices_than_a_figure_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    figure: str, needs: int,
) -> None:  # fmt: skip
    into(tmp_path, monkeypatch)
    assert main([figure, "--hardware", "h100x1"]) == 2
    said = capsys.readouterr().err
    assert f"--hardware h100x1 has 1 of the {needs} devices of {figure}; profiles that" in said
    assert "h100x8" in said
    assert not (tmp_path / "reproduced").exists()


@pytest.mark.parametrize(("num_invalid", "outcome"), [(1, SAME), (2, FAILED)])
def test_a_live_figure_whose_run_is_invalid_is_made_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_invalid: int, outcome: str
) -> None:
    into(tmp_path, monkeypatch)
    made: list[str] = []

    def make(names: list[str], *_: object) -> Iterator[tuple[str, None]]:
        made.extend(names)
        yield from ((name, None) for name in names)

    drawn_as(monkeypatch, [*[RunError("r is INVALID: the cores were busy")] * num_invalid, []])
    monkeypatch.setattr(reproduce, "make_runs", make)
    name = "kunserve_fig15_live"
    (row,) = made_again([name], Making(1), "full", tmp_path)
    assert made == [name, name]
    assert row.outcome == outcome
    assert outcome == SAME or "INVALID: the cores were busy" in row.told


def test_what_fails_in_a_way_nobody_thought_of_is_told() -> None:
    def broken() -> Row:
        raise KeyError("rate")

    row = reproduce.kept_going("figure", "a", broken)
    assert row == Row("figure", "a", FAILED, "KeyError: 'rate'")


def test_a_quick_figure_has_the_runs_of_one_seed_and_none_of_a_real_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = into(tmp_path, monkeypatch)
    assert main(["aegaeon_fig01", "aegaeon_fig10"]) == 0
    page = (out / "report.md").read_text()
    assert "| figure | aegaeon_fig01 | the same |  |" in page, "committed: one seed"
    assert (
        "| figure | aegaeon_fig10 | not compared | needs a real engine: --tier full | quick, "
        in page
    )
    said = capsys.readouterr().err
    assert "1 figures of 1 runs (0 live)" in said
    there = times.last_times(tmp_path / "times.json")
    took = there["experiments"]["aegaeon_fig01"]
    assert took["num_runs"] == {"quick": 1}
    assert took["run_bytes"] > 1000
    expected = times.expected(["aegaeon_fig01"], "quick", 2, there)
    assert (expected.num_runs, expected.num_first) == (1, 0)
    assert expected.num_bytes == took["run_bytes"]
    drawing_s = there["figures"]["aegaeon_fig01"]
    longest_s = max((took["run_s"] + drawing_s) / 2, drawing_s)  # one process draws
    assert expected.seconds == pytest.approx(times.STARTING_S + longest_s)


@pytest.mark.parametrize(
    "name",
    ["aegaeon_factors", "blitzscale_load", "blitzscale_load_fleets", "kunserve_table_bound",
     "matrix_burst", "matrix_many"],
)  # fmt: skip
def test_a_figure_that_is_named_takes_two_minutes_by_the_committed_times(name: str) -> None:
    nothing = times.last_times(Path("none"))
    quick, full = (times.expected([name], tier, 2, nothing).seconds for tier in ("quick", "full"))
    assert quick <= 120 < full


def test_the_first_time_tells_by_the_committed_tables_times() -> None:
    names = ["aegaeon_fig14", "aegaeon_fig16"]  # of one experiment, which is counted once
    one, both = (times.expected(of, "full", 2, times.last_times(Path("none"))) for of in
                 (names[1:], names))  # fmt: skip
    assert one.num_runs == 25
    assert both.num_runs < 2 * 25
    assert one.num_bytes == 25 * 0.6e6
    told = one.told(1, 2, 10**9)
    assert "0.015 GB of 1 GB free; 1 experiments by the times of the committed" in told
    assert "an estimate of 0.6 MB a run" in told
    quick = times.expected(names[1:], "quick", 2, times.last_times(Path("none")))
    assert quick.num_runs == 5
    assert quick.seconds > times.STARTING_S + times.DRAWING_S / 2
    name = "aegaeon_fig12"  # 60 are swept on its coarser grid, more find the ends of curves
    about = json.loads((published(name) / f"{name}.json").read_text())
    searched = times.expected([name], "quick", 2, times.last_times(Path("none")))
    assert 60 < searched.num_runs < about["num_runs"] / len(about["seeds"])
