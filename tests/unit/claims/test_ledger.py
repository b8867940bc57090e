"""Ledgers and what becomes of them, from figures' data in a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from harness.claims.__main__ import CLAIMS, by_profile, judged, main
from harness.claims.ledger import Claim, Paper, Variations, load
from harness.claims.render import as_json, as_markdown
from harness.errors import UsageError

ABOUT = {
    "engines": ["sim"],
    "hardware": ["h800x16"],
    "synthetic": ["arrivals drawn"],
    "runs_git": [],
}
HEAD = "title: A Paper\nvenue: X'99\nclaims:\n"
ONE = "- {id: a, section: '1', quantity: q, published: 1, unit: x, reason: because}\n"


def claim(**fields: object) -> Claim:
    base = {"id": "c", "section": "1", "quantity": "q", "published": 2.0, "unit": "x"}
    return Claim(**base | {"figure": "p_fig01", "value": {"mean": {"column": "y"}}} | fields)


def figure(folder: Path, *values: float) -> None:
    rows = pd.DataFrame({"seed": range(len(values)), "y": values})
    rows.to_csv(folder / "p_fig01.csv", index=False)
    (folder / "p_fig01.json").write_text(json.dumps(ABOUT))


def test_a_claim_is_judged_by_its_figures_data(tmp_path: Path) -> None:
    figure(tmp_path, 1.9, 2.0, 2.1)
    found = judged(claim(tolerance=0.1), tmp_path)
    assert found.verdict == "reproduced"
    assert found.ours is not None
    assert found.ours.num_seeds == 3


def test_missing_runs_name_the_command(tmp_path: Path) -> None:
    found = judged(claim(), tmp_path)
    assert (found.verdict, found.ours) == ("not attempted", None)
    assert "python -m harness.experiments.figures p_fig01" in found.why
    figure(tmp_path, 2.0)
    assert "1 of 3 seeds" in judged(claim(), tmp_path).why


def test_rows_that_the_figure_does_not_have_are_told(tmp_path: Path) -> None:
    figure(tmp_path, 1.0, 2.0, 3.0)
    for function in ("cell", "mean"):
        missing = {function: {"column": "y", "where": {"seed": 7}}}
        with pytest.raises(UsageError, match=r"claim .*p_fig01\.csv: no row .*'seed': 7"):
            judged(claim(value=missing, exact=True), tmp_path)


def test_a_claim_is_computed_with_a_system_set_otherwise_too(tmp_path: Path) -> None:
    rows = pd.DataFrame({"system": ["a", "a_fast", "b"], "y": [2.0, 3.0, 12.0]})
    rows.to_csv(tmp_path / "p_fig01.csv", index=False)
    (tmp_path / "p_fig01.json").write_text(json.dumps(ABOUT))
    means = [{"mean": {"column": "y", "where": {"system": name}}} for name in "ba"]
    mine = claim(value={"ratio": means}, exact=True)
    others = Variations(figures=["p_fig01"], systems={"a": {"fast": "a_fast"}})
    found = judged(mine, tmp_path, others)
    assert found.ours is not None
    assert found.ours.mean == pytest.approx(6.0)
    assert {label: ours.mean for label, ours in found.varied.items()} == {"fast": 4.0}
    paper = Paper(title="t", venue="v", note="Of two seeds.", claims=[mine])
    page = as_markdown({"p": (paper, [found])})
    assert "fast: 4 x" in page
    assert "\nOf two seeds.\n" in page
    (row,) = as_json("p", [found])["claims"]
    assert row["varied"] == {"fast": 4.0}
    elsewhere = Variations(figures=["p_fig02"], systems=others.systems)
    assert not judged(mine, tmp_path, elsewhere).varied
    assert not judged(claim(value=means[0], exact=True), tmp_path, others).varied


def test_what_the_paper_sets_is_no_result() -> None:
    row = judged(claim(value=None, figure=None, no_result=True, reason="an input"), Path())
    assert (row.verdict, row.why) == ("no result", "an input")
    assert "1 claims: 1 no result." in as_markdown({"p": (Paper(title="A", venue="B"), [row])})
    with pytest.raises(ValueError, match="claim c has a value and no_result"):
        claim(no_result=True)


def test_a_claim_is_judged_with_another_engine_profile_too(tmp_path: Path) -> None:
    for folder, value in ((tmp_path, 2.0), (tmp_path / "vllm_v1", 4.0), (tmp_path / "other", 9.0)):
        folder.mkdir(exist_ok=True)
        figure(folder, value, value, value)
    row = judged(claim(), tmp_path)
    row.profiles = by_profile(row.claim, tmp_path)
    assert row.verdict == "reproduced"
    assert {name: each.verdict for name, each in row.profiles.items()} == {
        "vllm_v1": "not reproduced"
    }
    page = as_markdown({"paper": (Paper(title="A", venue="B"), [row])})
    assert "of 1 claims 1 get another verdict (1 from reproduced to not reproduced)" in page
    assert "with vllm_v1: 4 x, not reproduced" in page


def test_claims_are_counted_by_what_they_rest_on(tmp_path: Path) -> None:
    figure(tmp_path, 1.0, 1.0, 4.0)
    about = tmp_path / "p_fig01.json"
    found = []
    for engines in ([], ["sim"], ["sim"], ["sim", "torch"]):
        about.write_text(json.dumps(ABOUT | {"engines": engines}))
        found.append(judged(claim(our_reading=not engines), tmp_path))
    found[2] = judged(claim(published=9.0), tmp_path)
    text = as_markdown({"p": (Paper(title="A Paper", venue="X'99"), found)})
    assert "| A Paper | 4 | 3 | 0 | 1 | 0 | 0 |" in text
    assert "| arithmetic: no run of ours | 1 | 1 | 0 | 0 |" in text
    assert "| simulated | 1 | 1 | 0 | 0 |" in text
    assert "| live: on a real engine | 2 | 1 | 0 | 1 |" in text
    assert "In 1 of the claims" in text
    assert "| 2 x (our reading) |" in text
    assert [row["our_reading"] for row in as_json("p", found)["claims"]] == [True] + [False] * 3


def test_a_number_without_a_run_is_arithmetic_in_any_figure(tmp_path: Path) -> None:
    figure(tmp_path, 1.0, 1.0, 4.0)
    (tmp_path / "p_fig01.json").write_text(json.dumps(ABOUT | {"engines": ["sim"]}))
    found = [judged(claim(arithmetic=True), tmp_path)]
    text = as_markdown({"p": (Paper(title="A Paper", venue="X'99"), found)})
    assert "| arithmetic: no run of ours | 1 | 1 | 0 | 0 |" in text
    assert "p_fig01.png): arithmetic" in text
    assert as_json("p", found)["claims"][0]["engines"] == []


def test_without_an_attempt_nothing_is_counted_by_what_it_rests_on(tmp_path: Path) -> None:
    found = [judged(claim(value=None, reason="because", our_reading=True), tmp_path)]
    text = as_markdown({"p": (Paper(title="A Paper", venue="X'99"), found)})
    assert "1 claims: 1 not attempted." in text
    assert "| from | claims |" not in text
    assert "In 1 of the claims" in text


def test_the_table_says_where_a_value_came_from(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(HEAD + ONE)
    figure(tmp_path, 1.0, 1.0, 4.0)
    rows = [judged(claim(), tmp_path), judged(load(path).claims[0], tmp_path)]
    text = as_markdown({"p": (load(path), rows)})
    assert "2 claims: 1 reproduced, 1 not attempted." in text
    assert "simulated, h800x16" in text
    assert "2 x (1 to 4)" in text
    assert as_json("p", rows)["claims"][1]["why"] == "because"


def test_a_claims_world_is_that_of_its_own_rows(tmp_path: Path) -> None:
    rows = [("sim", "h800x16", y) for y in (1, 2, 3)] + [
        ("torch", "local_x2", y) for y in (5, 6, 7)
    ]
    table = pd.DataFrame(rows, columns=["engine", "hardware", "y"]).assign(seed=[0, 1, 2] * 2)
    table.to_csv(tmp_path / "p_fig01.csv", index=False)
    git = [{"revision": "0123456789", "dirty": True}, {"revision": "abcdef0123", "dirty": False}]
    about = ABOUT | {"engines": ["sim", "torch"], "hardware": ["h800x16", "local_x2"]}
    (tmp_path / "p_fig01.json").write_text(json.dumps(about | {"runs_git": git}))
    measured = {"mean": {"column": "y", "where": {"engine": "torch"}}}
    found = [
        judged(claim(value=value), tmp_path) for value in (measured, {"mean": {"column": "y"}})
    ]
    text = as_markdown({"p": (Paper(title="A Paper", venue="X'99"), found)})
    assert "png): torch, local_x2, 0123456+dirty, abcdef0 |" in text
    assert "png): simulated, torch, h800x16, local_x2, 0123456+dirty, abcdef0 |" in text
    one, both = as_json("p", found)["claims"]
    assert (one["engines"], one["hardware"]) == (["torch"], ["local_x2"])
    assert (both["engines"], both["hardware"]) == (["sim", "torch"], ["h800x16", "local_x2"])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (ONE.replace("unit", "unti"), "unknown key 'unti'"),
        (ONE.replace(", reason: because", ""), "has no value, and no reason why"),
        (ONE.replace("reason: because", "relation: near"), "relation=near is not one of about"),
        (ONE + ONE, "two claims a"),
    ],
)
def test_a_wrong_ledger_is_told(tmp_path: Path, rows: str, words: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(HEAD + rows)
    with pytest.raises(UsageError, match=words):
        load(path)


def test_a_paper_without_claims_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nowhere"]) == 2
    assert "there are no claims of nowhere; there are: aegaeon" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(CLAIMS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_committed_ledgers_load(path: Path) -> None:
    assert load(path).claims
