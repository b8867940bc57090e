"""Ledgers and what becomes of them, from figures' data in a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness.claims.assess import Judged, by_profile, conditional, judged
from harness.claims.ledger import Claim, Comparison, Paper, Variations, load
from harness.claims.page import as_markdown
from harness.claims.record import as_json
from harness.errors import UsageError

ABOUT: dict[str, Any] = {
    "engines": ["sim"],
    "hardware": ["h800x16"],
    "synthetic": ["arrivals drawn"],
    "runs_git": [],
    "num_runs": 5,
    "run_s": {"aegaeon_fig01": 1.0},
}
HEAD = "title: A Paper\nvenue: X'99\nclaims:\n"
ONE = "- {id: a, section: '1', quantity: q, published: 1, unit: x, reason: because}\n"
VALUED = (
    "- {id: b, section: '1', quantity: q, published: 1, unit: x, figure: p_fig01, "
    "value: {mean: {column: y}}}\n"
)


def claim(**fields: object) -> Claim:
    base = {"id": "c", "section": "1", "quantity": "q", "published": 2.0, "unit": "x"}
    return Claim(**base | {"figure": "p_fig01", "value": {"mean": {"column": "y"}}} | fields)


def figure(folder: Path, *values: float, **about: object) -> None:
    rows = pd.DataFrame({"seed": range(len(values)), "y": values, "config_hash": "abc"})
    rows.to_csv(folder / "p_fig01.csv", index=False)
    (folder / "p_fig01.json").write_text(json.dumps(ABOUT | about))


def page(rows: Sequence[Judged], note: str = "") -> str:
    paper = Paper(title="A Paper", venue="X'99", short="A", note=note)
    return as_markdown({"p": (paper, rows)})


def test_a_claim_is_judged_by_its_figures_data(tmp_path: Path) -> None:
    figure(tmp_path, 1.98, 1.99, 2.0, 2.01, 2.02)
    found = judged(claim(tolerance=0.1), tmp_path)
    assert (found.verdict, found.kind, found.ours[0].num_seeds) == ("reproduced", "simulated", 5)


def test_missing_runs_name_the_command(tmp_path: Path) -> None:
    found = judged(claim(), tmp_path)
    assert (found.verdict, list(found.ours)) == ("not attempted", [])
    assert "python -m harness figures p_fig01" in found.why
    figure(tmp_path, 2.0)
    assert judged(claim(), tmp_path).why == "1 of 5 seeds"


def test_a_live_value_needs_three_seeds(tmp_path: Path) -> None:
    figure(tmp_path, 2.0, 2.0, 2.0, engines=["torch"], hardware=["local_x2"])
    found = judged(claim(), tmp_path)
    assert (found.verdict, found.kind) == ("reproduced", "live, CPU")


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
    assert found.ours[0].mean == pytest.approx(6.0)
    assert {label: ours.mean for label, ours in found.varied.items()} == {"fast": 4.0}
    told = page([found], note="Of two seeds.")
    assert "fast: 4 x" in told
    assert "\nOf two seeds.\n" in told
    (row,) = as_json("p", [found])["claims"]
    assert row["varied"] == {"fast": 4.0}
    elsewhere = Variations(figures=["p_fig02"], systems=others.systems)
    assert not judged(mine, tmp_path, elsewhere).varied
    assert not judged(claim(value=means[0], exact=True), tmp_path, others).varied


def test_settings_and_repeated_claims_are_not_judged(tmp_path: Path) -> None:
    setting = claim(value=None, figure=None, setting=True, reason="an input")
    again = claim(id="d", value=None, figure=None, repeats="c")
    rows = [judged(each, tmp_path) for each in (setting, again)]
    assert [row.verdict for row in rows] == ["setting", "repeated"]
    told = page(rows)
    assert "| A | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 1 | 1 |  |  |  |" in told
    assert "repeated: c" in told
    with pytest.raises(ValueError, match="claim c has a value, and is a setting"):
        claim(setting=True)


def test_a_simulated_claim_has_a_verdict_for_each_engine_profile(tmp_path: Path) -> None:
    for folder, value in ((tmp_path, 2.0), (tmp_path / "vllm_v1", 4.0), (tmp_path / "other", 9.0)):
        folder.mkdir(exist_ok=True)
        figure(folder, *[value] * 5)
    row = judged(claim(headline=True), tmp_path)
    row.profiles = by_profile(row.claim, tmp_path)
    assert row.verdict == "reproduced"
    assert {name: each.verdict for name, each in row.profiles.items()} == {
        "vllm_v1": "not reproduced"
    }
    told = page([row])
    assert "| 1 | q | 2 x | 2 x | **reproduced** | 4 x | **not reproduced** |" in told
    assert "| of these with runs of both, vllm_v1 | 0 | 0 | 0 | 1 | 0 | 0 | 0 | 0 % |" in told


def test_what_a_figure_compares_stands_above_its_claims() -> None:
    of = Comparison(regime="half of the load", control="nothing drops", counter="a ratio of 1")
    paper = Paper(title="A Paper", venue="X'99", comparisons={"p_fig01": of})
    told = as_markdown({"p": (paper, [])})
    assert "| p_fig01 | half of the load | nothing drops | a ratio of 1 |" in told
    assert "What is compared" not in page([])


def test_the_table_counts_and_shares(tmp_path: Path) -> None:
    figure(tmp_path, *[2.0] * 5)
    wrong = judged(claim(id="w", published=9.0), tmp_path)
    right = judged(claim(id="r", our_reading=True), tmp_path)
    idle = Judged(claim(id="i"), "not exercised")
    (tmp_path / "p_fig01.csv").write_text("seed,y,inputs\n0,2,paper\n")
    arithmetic = judged(claim(exact=True, by_construction="the paper's own sum"), tmp_path)
    told = page([right, wrong, arithmetic, idle])
    assert "| A | 1 | 0 | 0 | 1 | 1 | 1 | 0 | 0 | 0 | 50 % | 0 % | 33 % |" in told
    assert "| all | 1 | 0 | 0 | 1 | 1 | 1 | 0 | 0 | 0 | 50 % | 0 % | 33 % |" in told
    assert "| arithmetic on the paper's numbers | 0 | 0 | 0 | 0 | 1 | 0 | 0 |  |" in told
    assert "by construction: the paper's own sum" in told
    assert "In 1 of the claims the paper gives words only" in told
    assert "2 x (our reading)" in told


def test_of_several_readings_the_worst_counts(tmp_path: Path) -> None:
    figure(tmp_path, *[2.0] * 5)
    mine, other = claim(), claim(id="d", reading_of="c", published=9.0)
    rows = [judged(each, tmp_path) for each in (mine, other)]
    told = page(rows)
    assert "| A | 0 | 0 | 0 | 1 | 0 | 0 | 0 | 0 | 0 | 0 % |" in told
    assert "not reproduced (another reading of c)" in told


def test_a_claim_whose_condition_does_not_hold_is_not_reproduced(tmp_path: Path) -> None:
    figure(tmp_path, *[2.0] * 5)
    held, condition = claim(id="d", given="c"), claim(published=9.0)
    rows = conditional([judged(each, tmp_path) for each in (held, condition)])
    assert [row.verdict for row in rows] == ["not reproduced", "not reproduced"]
    assert rows[0].why == "its condition, c, does not hold"
    (row, _) = conditional([judged(each, tmp_path) for each in (held, claim())])
    assert row.verdict == "reproduced"


def test_a_table_that_was_changed_by_hand_is_refused(tmp_path: Path) -> None:
    figure(tmp_path, *[2.0] * 5, table_sha256="0" * 64)
    with pytest.raises(UsageError, match="draw the figure again"):
        judged(claim(), tmp_path)


def test_measured_or_differing_values_are_not_exact(tmp_path: Path) -> None:
    figure(tmp_path, 2.0, 2.1)
    assert judged(claim(exact=True), tmp_path).why == "2 of 5 seeds"
    (tmp_path / "p_fig01.csv").write_text("seed,y,inputs\n0,2,measured\n")
    assert judged(claim(exact=True), tmp_path).why == "1 of 3 seeds"


def test_a_row_tells_the_effect_the_cause_and_the_origin(tmp_path: Path) -> None:
    figure(tmp_path, 1.3, 1.31, 1.3, 1.31, 1.3, runs_git=[{"revision": "0123456789", "dirty": 1}])
    found = judged(claim(effect="ratio", cause="hardware", reason="slow links"), tmp_path)
    told = page([found])
    assert "weak, 30 % of the effect" in told
    assert "1.304 x (1.297, 1.311)" in told
    assert "*other hardware*; slow links" in told
    assert "png): simulated, h800x16, 0123456+dirty" in told
    far = judged(claim(effect="ratio", published=1.1), tmp_path)
    assert "weak, overshoots: 3 x the effect" in page([far])


def test_a_claims_engine_is_that_of_its_own_rows(tmp_path: Path) -> None:
    rows = [("sim", "h800x16", y) for y in (1, 2, 3)] + [
        ("torch", "local_x2", y) for y in (5, 6, 7)
    ]
    table = pd.DataFrame(rows, columns=["engine", "hardware", "y"])
    table.assign(seed=[0, 1, 2] * 2, config_hash="a").to_csv(tmp_path / "p_fig01.csv", index=False)
    about = ABOUT | {"engines": ["sim", "torch"], "hardware": ["h800x16", "local_x2"]}
    (tmp_path / "p_fig01.json").write_text(json.dumps(about))
    measured = {"mean": {"column": "y", "where": {"engine": "torch"}}}
    values = (measured, {"mean": {"column": "y"}})
    one, both = as_json("p", [judged(claim(value=v), tmp_path) for v in values])["claims"]
    assert (one["engines"], one["hardware"], one["kind"]) == (["torch"], ["local_x2"], "live, CPU")
    assert (both["engines"], both["hardware"]) == (["sim", "torch"], ["h800x16", "local_x2"])


def test_a_claim_that_rests_on_an_invalid_run_has_no_verdict(tmp_path: Path) -> None:
    rows = [
        {"experiment": "e", "system": name, "seed": seed, "token": 2.0, "valid": valid}
        for name, valid in (("ours", True), ("theirs", False))
        for seed in range(5)
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "p_fig01.csv", index=False)
    (tmp_path / "p_fig01.json").write_text(json.dumps(ABOUT))

    def of(name: str) -> Judged:
        return judged(
            claim(value={"cell": {"column": "token", "where": {"system": name}}}), tmp_path
        )

    assert of("ours").verdict == "reproduced"
    found = of("theirs")
    assert (found.verdict, list(found.ours)) == ("not attempted", [])
    assert found.why == (
        "rests on INVALID runs (5), the first: experiment e, system theirs, seed 0; "
        "run `python -m harness figures p_fig01 --again`"
    )


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (ONE.replace("unit", "unti"), "unknown key 'unti'"),
        (ONE.replace(", reason: because", ""), "has no value, and no reason why"),
        (ONE.replace("reason: because", "relation: near"), "relation=near is not one of about"),
        (ONE.replace("published: 1", "published: [2, 1]"), "is no range"),
        (ONE.replace("published: 1", "published: one"), "is no number or two"),
        (ONE.replace("reason: because", "cause: luck"), "cause=luck is not one of inputs"),
        (ONE.replace("reason: because", "repeats: z"), "claim a: repeats=z is no claim"),
        (ONE + ONE, "two claims a"),
        (VALUED + VALUED.replace("id: b", "id: c"), "claims b and c are one: write repeats: b"),
        (VALUED.replace("value: {mean: {column: y}}", "value: []"), r"value=\[\] is no expression"),
        (VALUED.replace("value: {mean: {column: y}}", "value: [{constant: 1}, {constant: 2}]"),
         "two values and no range"),
        ("- &a {id: b}\n- *a\n", "the alias .a is not read"),
        ("- " + "[" * 100, "nested more than 30 levels deep"),
        ("- {1: a, '1': b}\n", "has the key 1, which is no text"),
    ],
)  # fmt: skip
def test_a_wrong_ledger_is_told(tmp_path: Path, rows: str, words: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(HEAD + rows)
    with pytest.raises(UsageError, match=words):
        load(path)
