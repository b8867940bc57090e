"""`python -m harness reproduce`: figures and claims again, beside the committed ones."""

import json
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

import harness.reproduce.__main__ as reproduce
from harness.claims.assess import figure_table
from harness.claims.expressions import evaluate
from harness.claims.ledger import load
from harness.errors import RunError
from harness.experiments import figures
from harness.experiments.batch import Making
from harness.experiments.figures import described, make_runs, published
from harness.experiments.points import Point, load_points
from harness.reproduce import holding, report, times
from harness.reproduce.__main__ import made_again, main
from harness.reproduce.asked import CLAIMS, SMOKE_FIGURE, asked, live_versions
from harness.reproduce.holding import (
    DIFFERENT,
    FAILED,
    SAME,
    UNTOLD,
    WITHIN,
    Row,
    difference,
    judged_again,
    of_the_same_seeds,
    why_other,
)
from harness.reproduce.report import as_page, verdict
from plots.kunserve.regime import ROOMY
from plots.kunserve.runs import POINT, SYSTEM

HEAD = "system,rate,p99_s,config_hash\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (HEAD + "a,1,2.5,x\nb,1,,y\n", ""),
        (HEAD + "a,1,2.5,z\nb,1,,z\n", ""),  # runs of other sources that come to the same
        (HEAD + "a,1,2.75,x\nb,1,,y\n", "p99_s, by up to 9.1%"),
        (HEAD + "a,2,5,x\nb,1,,y\n", "rate and 1 other columns, by up to 50.0%"),
        (HEAD + "a,1,2.5,x\nc,1,,y\n", "system, in words"),
        (HEAD + "a,1,2.5,x\nb,1,3,y\n", "p99_s, in words"),
        (HEAD + "a,1,2.5,x\n", "1 rows, 2 committed"),
        ("system,rate,p50_s\na,1,2.5\nb,1,\n", "columns p50_s, p99_s"),
    ],
)
def test_how_two_tables_differ(tmp_path: Path, text: str, found: str) -> None:
    made, committed = tmp_path / "made.csv", tmp_path / "committed.csv"
    committed.write_text(HEAD + "a,1,2.5,x\nb,1,,y\n")
    made.write_text(text)
    assert difference(made, committed) == found


def test_rows_of_one_seed_are_held_against_the_committed_rows_of_this_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, committed = "kunserve_fig05", tmp_path / "committed"
    committed.mkdir()
    monkeypatch.setattr(holding, "published", lambda _: committed)
    for folder, seeds in ((tmp_path, [0]), (committed, [0, 1])):
        (folder / f"{name}.json").write_text(json.dumps({"seeds": seeds}))
    head = "stages,seed,p99_s\n"
    (committed / f"{name}.csv").write_text(head + "1,0,4\n8,0,5\n1,1,6\n8,1,7\n,,9\n")

    def held(rows: str) -> Row:
        (tmp_path / f"{name}.csv").write_text(head + rows)
        return holding.figure_held(name, tmp_path, of_one_seed=True)

    assert held("1,0,4\n8,0,5\n,,8\n").outcome == SAME, "what has no seed is of all of them"
    changed = held("1,0,4\n8,0,5.5\n")
    assert (changed.outcome, changed.told) == (
        DIFFERENT, "p99_s, by up to 9.1%; rows of fewer than 5 seeds"
    )  # fmt: skip
    assert holding.figure_held(name, tmp_path, of_one_seed=False).outcome == DIFFERENT


def test_a_table_that_was_never_committed_differs(tmp_path: Path) -> None:
    (tmp_path / "made.csv").write_text(HEAD)
    assert difference(tmp_path / "made.csv", tmp_path / "none.csv") == "nothing is committed"


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


@pytest.mark.parametrize(
    "name", ["kunserve_regime", "kunserve_variants", "kunserve_fig10", "kunserve_fig14"]
)
def test_on_the_quick_tiers_coarser_grid_claims_come_to_the_same(name: str) -> None:
    of, table = described(name), figure_table(published(name) / f"{name}.csv")
    grid = of.runs("quick")
    assert grid != of.runs("full") == of.only
    one = table[table.seed == table.seed.iloc[0]]
    kept = pd.Series(True, one.index)
    if SYSTEM in grid:
        kept &= one.system.isin([*grid[SYSTEM], ROOMY])
    if POINT in grid:
        kept &= one.point.isin(grid[POINT]) | one.point.isna()
    if name == "kunserve_fig14":
        kept &= one.exchange != "chunks"  # of sizes between the rule's and the largest
    assert kept.sum() < len(one)
    claims = [claim for claim in load(CLAIMS / "kunserve.yaml").claims if claim.figure == name]
    assert claims
    for each in (each for claim in claims for each in claim.expressions):
        assert evaluate(each, one[kept]).values == evaluate(each, one).values
    of.plot(one[kept])


@pytest.mark.parametrize("name", ["kunserve_variants", "kunserve_fig10"])
def test_an_experiment_of_which_a_coarser_grid_has_no_run_is_passed_over(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "run_all", lambda names, *_: ((name, []) for name in names))
    make_runs([name], Making(1, seeds=1), tmp_path, "quick")
    assert all(load_points(each, tmp_path) == [] for each in described(name).experiments)


def test_runs_that_an_earlier_figure_had_are_not_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into(tmp_path, monkeypatch)
    looked: list[tuple[str, set[str]]] = []

    def make(names: list[str], making: Making, out: Path, tier: str, made: set[str]) -> None:
        looked.append((names[0], set(described(names[0]).experiments) - made))

    monkeypatch.setattr(reproduce, "make_runs", make)
    monkeypatch.setattr(reproduce, "draw_all", lambda *_: [[]])
    monkeypatch.setattr(reproduce, "note", lambda *_: None)
    monkeypatch.setattr(holding, "figure_held", lambda name, *_, **__: Row("figure", name, SAME))
    names = ["aegaeon_fig14", "aegaeon_fig16", "kunserve_regime", "kunserve_fig11"]
    assert all(
        row.outcome == SAME for row in made_again(names, Making(1, seeds=1), "quick", tmp_path)
    )
    assert looked == [
        ("aegaeon_fig14", {"aegaeon_fig14", "aegaeon_fig14_rates"}),
        ("aegaeon_fig16", set()),
        ("kunserve_regime", {"kunserve_regime", "kunserve_roomy", "kunserve_fig10_burstgpt"}),
        ("kunserve_fig11", {"kunserve_regime", "kunserve_fig10_migration"}),  # other runs of it
    ]


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

    def broken(names: list[str], *rest: object) -> None:
        if names == ["kunserve_table1"]:
            raise RunError("the disk is full")
        whole(names, *rest)

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
    revisions = iter("ab")
    monkeypatch.setattr(
        report, "git_revision", lambda: {"revision": 8 * next(revisions), "dirty": False}
    )
    assert main(["kunserve_table1"]) == 0
    assert main(["kunserve_table2"]) == 0
    page = (out / "report.md").read_text()
    assert "| figure | kunserve_table1 | the same |  | quick, aaaaaaaa |" in page
    assert "| figure | kunserve_table2 | the same |  | quick, bbbbbbbb |" in page
    assert "kunserve_table1\n" in capsys.readouterr().err, "beforehand: what will be made"


def test_what_a_command_leaves_out_or_does_not_judge_replaces_no_row_but_old_claims_go(
    tmp_path: Path,
) -> None:
    earlier = [Row("figure", "a", DIFFERENT), Row("claim", "p/b", SAME), Row("claim", "p/c", SAME)]
    report.write(tmp_path, earlier, [], [Row("figure", "a", UNTOLD)], {"p/b"})
    assert report.read(tmp_path) == [earlier[0], earlier[2]]


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
    assert other.startswith("error: kunserve_fig15: no version on vllm; ")
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
    folder = tmp_path / "reproduced" / "h100x1"
    assert main(["blitzscale_fig21", "--hardware", "h100x1"]) == 1
    assert made == [("blitzscale_fig21_live", ["hardware=h100x1"], folder)]
    assert "h100x1, " in (folder / "report.md").read_text()
    assert main(["blitzscale_fig21", "--hardware", "h100x9"]) == 2
    assert "--hardware h100x9 does not exist; choose one of: " in capsys.readouterr().err
    assert main(["--world", "torch", "--tier", "smoke"]) == 2


@pytest.mark.parametrize(("num_invalid", "outcome"), [(1, SAME), (2, FAILED)])
def test_a_live_figure_whose_run_is_invalid_is_made_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_invalid: int, outcome: str
) -> None:
    into(tmp_path, monkeypatch)
    made: list[str] = []
    drawn = iter([*[RunError("r is INVALID: the cores were busy")] * num_invalid, []])
    monkeypatch.setattr(reproduce, "make_runs", lambda names, *_: made.extend(names))
    monkeypatch.setattr(reproduce, "draw_all", lambda *_: [next(drawn)])
    monkeypatch.setattr(reproduce, "note", lambda *_: None)
    monkeypatch.setattr(holding, "figure_held", lambda name, *_, **__: Row("figure", name, SAME))
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


def summary(folder: Path, status: str, num_completed: int = 80) -> Point:
    verdict = {"status": status, "reasons": ["the cores were busy"]}
    found = {"num_completed": num_completed, "num_requests": 80, "verdict": verdict}
    (folder / "summary.json").write_text(json.dumps(found))
    return Point("demo", {}, 0, folder, "")


@pytest.mark.parametrize(
    ("status", "num_completed", "outcome", "words"),
    [
        ("VALID", 80, SAME, "80 of 80 requests completed, VALID"),
        ("INVALID", 80, UNTOLD, "80 of 80 requests completed, INVALID: the cores were busy"),
        ("VALID", 79, FAILED, "79 of 80 requests completed, VALID"),
        ("INVALID", 18, FAILED, "18 of 80 requests completed, INVALID: the cores were busy"),
    ],
)
def test_what_the_live_run_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    status: str, num_completed: int, outcome: str, words: str,
) -> None:  # fmt: skip
    point = summary(tmp_path, status, num_completed)
    monkeypatch.setattr(reproduce, "run_point", lambda *_, **__: point)
    row = reproduce.live_run()
    assert row.outcome == outcome
    assert words in row.told


def test_one_seeds_value_is_held_against_the_committed_one_of_this_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = {claim.id: claim for claim in load(CLAIMS / "kunserve.yaml").claims}
    claim = claims["fig05-8-ttft"]
    head, made, committed = "stages,rate,seed,ttft_p99_over_one\n", tmp_path, tmp_path / "committed"
    committed.mkdir()
    (committed / "kunserve_fig05.csv").write_text(head + "8,1.5,0,4\n8,1.5,1,6\n")
    monkeypatch.setattr(holding, "published", lambda _: committed)
    found = []
    for value in ("4", "5", "7"):
        (made / "kunserve_fig05.csv").write_text(head + f"8,1.5,0,{value}\n")
        found += [(row.told, row.outcome) for row in of_the_same_seeds([claim], made)]
    assert found == [
        ("4; fewer than 5 seeds", SAME),
        ("4 before, now 5, as seeds differ; fewer than 5 seeds", WITHIN),
        ("4 before, now 7; fewer than 5 seeds", DIFFERENT),
    ]
    (made / "kunserve_fig05.csv").write_text(head + "2,1.5,0,4\n")
    (row,) = of_the_same_seeds([claim], made)
    assert row.told.startswith("not told by one seed: no row of the figure has")
    assert row.outcome == UNTOLD


def test_all_seeds_judge_a_claim_beside_its_committed_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = next(c for c in load(CLAIMS / "kunserve.yaml").claims if c.id == "fig05-8-ttft")
    about = {"engines": ["sim"], "hardware": ["h"], "synthetic": [], "runs_git": []}
    committed = tmp_path / "claims"
    committed.mkdir()
    monkeypatch.setattr(holding, "CLAIMS", committed)
    published = tmp_path / "published"
    published.mkdir()
    monkeypatch.setattr(holding, "published", lambda _: published)
    (published / "kunserve_fig05.json").write_text(json.dumps(about))
    head = "stages,rate,seed,ttft_p99_over_one,config_hash\n"

    def row(verdict: str, ours: float, *values: float, engine: str = "sim") -> Row:
        made = about | {"engines": [engine]}
        (tmp_path / "kunserve_fig05.json").write_text(json.dumps(made))
        rows = "".join(f"8,1.5,{seed},{value},h\n" for seed, value in enumerate(values))
        (tmp_path / "kunserve_fig05.csv").write_text(head + rows)
        was = {"claims": [{"id": claim.id, "verdict": verdict, "ours": [ours]}]}
        (committed / "kunserve.json").write_text(json.dumps(was))
        (found,) = judged_again([claim], tmp_path)
        return found

    far = [1000.0, 1001.0, 1002.0, 1003.0, 1004.0]
    judged = row("none", 1.0, *far).told.partition("now ")[2].partition(" (")[0]
    assert row(judged, 1002.0, *far).outcome == SAME
    assert row(judged, 1002.01, *far).outcome == DIFFERENT, "simulated: the same to six digits"
    assert row(judged, 1001.0, *far, engine="torch").outcome == WITHIN, "measured"
    other = row("none", 1002.0, *far, engine="torch")
    assert other.outcome == DIFFERENT
    assert other.told.endswith("; engines: torch, committed sim")
    (tmp_path / "kunserve_fig05.csv").write_text("stages\n8\n")
    (failed,) = judged_again([claim], tmp_path)
    assert failed.outcome == FAILED


def test_the_cause_of_a_difference_is_told_where_the_runs_tell_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, committed = tmp_path / "a.json", tmp_path / "committed/a.json"
    monkeypatch.setattr(holding, "published", lambda _: committed.parent)
    committed.parent.mkdir()
    about = {"synthetic": [], "hardware": ["h"], "runs_sources": ["a"], "seeds": [0, 1]}
    made.write_text(json.dumps(about))
    assert why_other("a", tmp_path) == [], "nothing is committed"
    committed.write_text(json.dumps(about))
    assert why_other("a", tmp_path) == []
    other = {"synthetic": ["SYNTHETIC"], "runs_sources": ["b"], "seeds": [0]}
    made.write_text(json.dumps(about | other))
    inputs, seeds, code = why_other("a", tmp_path)
    assert inputs == "inputs: SYNTHETIC, committed none"
    assert seeds == "seeds: 0, committed 0, 1"
    assert code == "the code is not that of the committed runs"
    assert why_other("a", tmp_path, of_one_seed=True) == [inputs, code]


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
    assert expected.seconds == pytest.approx(took["run_s"] / 2 + drawing_s)


def test_the_first_time_tells_by_the_committed_tables_times() -> None:
    names = ["aegaeon_fig14", "aegaeon_fig16"]  # of one experiment, which is counted once
    one, both = (times.expected(of, "full", 2, times.last_times(Path("none"))) for of in
                 (names[1:], names))  # fmt: skip
    assert one.num_runs == 25
    assert both.num_runs < 2 * 25
    assert one.num_bytes is None
    assert "disk not known yet" in one.told(1, 2, 10**9)
    quick = times.expected(names[1:], "quick", 2, times.last_times(Path("none")))
    assert quick.num_runs == 5
    assert quick.seconds > times.DRAWING_S
    name = "aegaeon_fig12"  # of which more runs than swept ones find the ends of curves
    about = json.loads((published(name) / f"{name}.json").read_text())
    searched = times.expected([name], "quick", 2, times.last_times(Path("none")))
    assert searched.num_runs == pytest.approx(about["num_runs"] / len(about["seeds"]), abs=4)


def test_the_verdict_counts_each_outcome() -> None:
    same, near = Row("claim", "p/a", SAME, "1|2"), Row("claim", "p/b", WITHIN)
    other, left = Row("claim", "p/c", DIFFERENT), Row("figure", "d", UNTOLD)
    assert verdict([same, near, left]) == (
        "Verdict: nothing differs (1 the same, 1 within the allowed variation, 1 not compared)."
    )
    assert verdict([same, other]).startswith("Verdict: 1 of 2 differ (")
    assert verdict([left]).startswith("Verdict: nothing was held against what is committed")
    assert "| claim | p/a | the same | 1\\|2 |  |" in as_page([same])
