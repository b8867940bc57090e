"""Tables and claims that were made again, held against the committed ones."""

import json
from pathlib import Path

import pandas as pd
import pytest

from harness.claims.assess import figure_table
from harness.claims.expressions import evaluate
from harness.claims.ledger import load
from harness.experiments import figures
from harness.experiments.batch import Making
from harness.experiments.figures import described, make_runs, published
from harness.experiments.points import load_points
from harness.reproduce import holding
from harness.reproduce.asked import CLAIMS
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
from plots.grey import told_apart
from plots.kunserve.regime import ROOMY
from plots.kunserve.runs import POINT

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

    same = held("1,0,4\n8,0,5\n,,8\n")
    assert (same.outcome, same.told) == (SAME, "2 of 3 rows, of fewer than 5 seeds"), (
        "what has no seed is of all of them"
    )
    assert held(",,8\n").outcome == UNTOLD, "no row was compared"
    changed = held("1,0,4\n8,0,5.5\n")
    assert (changed.outcome, changed.told) == (
        DIFFERENT, "p99_s, by up to 9.1%; 2 of 2 rows, of fewer than 5 seeds"
    )  # fmt: skip
    assert holding.figure_held(name, tmp_path, of_one_seed=False).outcome == DIFFERENT


@pytest.mark.parametrize("name", [n for n in figures.figures() if described(n).quick == "rows"])
def test_a_row_that_quick_compares_rests_on_no_run_of_another_seed(name: str) -> None:
    table = figure_table(published(name) / f"{name}.csv")
    assert {"seed", "config_hash"} <= set(table), "rows say their seed and runs"
    sets = json.loads((published(name) / f"{name}.json").read_text()).get("sets", {})
    if set(table.verdict) == {"no run"}:
        return
    seeds: dict[str, float] = {}  # by the hash of a run, which has one
    named = table[table.seed.notna() & table.config_hash.notna()]
    named = named[~named.config_hash.str.contains(" of FIGURE.json's")]  # no set: an older table
    assert len(named)
    for row in named.itertuples():
        for run in sets.get(row.config_hash, str(row.config_hash).split()):
            assert seeds.setdefault(run, row.seed) == row.seed, f"{run} is of another seed, too"


def test_a_table_that_was_never_committed_differs(tmp_path: Path) -> None:
    (tmp_path / "made.csv").write_text(HEAD)
    assert difference(tmp_path / "made.csv", tmp_path / "none.csv") == "nothing is committed"


@pytest.mark.parametrize(
    "name",
    ["aegaeon_fig11", "aegaeon_fig12", "aegaeon_fig13", "aegaeon_table_goodput", "aegaeon_factors",
     "kunserve_regime", "kunserve_variants", "kunserve_fig10", "kunserve_fig14"],
)  # fmt: skip
def test_on_the_quick_tiers_coarser_grid_claims_come_to_the_same(name: str) -> None:
    of, table = described(name), figure_table(published(name) / f"{name}.csv")
    grid = of.runs("quick")
    assert grid != of.runs("full") == of.only
    one = table[table.seed == table.seed.iloc[0]]
    kept = pd.Series(True, one.index)
    systems = next((grid[key] for key in grid if "/system@" in key), None)
    if systems is not None:
        kept &= one.system.isin([*systems, ROOMY])
    if POINT in grid:
        kept &= one.point.isin(grid[POINT]) | one.point.isna()
    if name == "kunserve_fig14":
        kept &= one.exchange != "chunks"  # of sizes between the rule's and the largest
    assert kept.sum() < len(one)
    ledger = load(CLAIMS / f"{name.partition('_')[0]}.yaml")
    claims = [claim for claim in ledger.claims if claim.figure == name]
    assert claims
    for each in (each for claim in claims for each in claim.expressions):
        assert evaluate(each, one[kept]).values == evaluate(each, one).values
    told_apart(of.plot(one[kept])[0])


@pytest.mark.parametrize(
    "name", [n for n in figures.figures() if described(n).grid and described(n).quick == "rows"]
)
def test_rows_of_a_coarser_grid_are_held_against_the_committed_ones(
    name: str, tmp_path: Path
) -> None:
    of, table = described(name), figure_table(published(name) / f"{name}.csv")
    (workloads,) = (of.grid[key] for key in of.grid if "/workload@" in key)
    kept = table[(table.seed == 0) & table.workload.isin(workloads)]
    assert 0 < len(kept) < (table.seed == 0).sum()
    (tmp_path / f"{name}.json").write_text(json.dumps({"seeds": [0]}))

    def held(rows: pd.DataFrame) -> Row:
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
        return holding.figure_held(name, tmp_path, of_one_seed=True)

    told = f"{len(kept)} of {len(kept)} rows on a coarser grid, of fewer than 5 seeds"
    assert held(kept) == Row("figure", name, SAME, told)
    column = "value" if "value" in kept else "ttft_p99_s"
    other = held(kept.assign(**{column: kept[column].where(kept.index != kept.index[0], 7.5)}))
    assert other.outcome == DIFFERENT
    assert other.told.startswith("1 rows that are not among the committed ones; ")
    system = kept.system[kept.rate.astype(str).isin(of.grid["workload.scale.rate"])].iloc[0]
    fewer = held(kept[kept.system != system])
    assert fewer.outcome == DIFFERENT
    assert " committed rows of the grid are missing; " in fewer.told
    told_apart(of.plot(kept)[0])


@pytest.mark.parametrize("name", ["kunserve_variants", "kunserve_fig10"])
def test_an_experiment_of_which_a_coarser_grid_has_no_run_is_passed_over(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "run_all", lambda names, *_: ((name, []) for name in names))
    assert list(make_runs([name], Making(1, seeds=1), tmp_path, "quick")) == [(name, None)]
    assert all(load_points(each, tmp_path) == [] for each in described(name).experiments)


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


def test_the_verdict_counts_each_outcome() -> None:
    same, near = Row("claim", "p/a", SAME, "1|2"), Row("claim", "p/b", WITHIN)
    other, left = Row("claim", "p/c", DIFFERENT), Row("figure", "d", UNTOLD)
    assert verdict([same, near, left]) == (
        "Verdict: nothing differs (1 the same, 1 within the allowed variation, 1 not compared)."
    )
    assert verdict([same, other]).startswith("Verdict: 1 of 2 differ (")
    assert verdict([left]).startswith("Verdict: nothing was held against what is committed")
    assert "| claim | p/a | the same | 1\\|2 |  |" in as_page([same])
