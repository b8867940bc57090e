"""`python -m harness reproduce`: figures and claims again, beside the committed ones."""

from pathlib import Path

import pytest

import harness.reproduce.__main__ as reproduce
from harness.claims.ledger import load
from harness.errors import RunError
from harness.reproduce.__main__ import CLAIMS, asked, main, of_the_same_seeds
from harness.reproduce.tables import difference

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


def test_a_table_that_was_never_committed_differs(tmp_path: Path) -> None:
    (tmp_path / "made.csv").write_text(HEAD)
    assert difference(tmp_path / "made.csv", tmp_path / "none.csv") == "nothing is committed"


def test_papers_figures_and_claims_are_named_as_elsewhere() -> None:
    names, claims = asked(["kunserve_table1"])
    assert names == ["kunserve_table1"]
    assert {claim.figure for claim in claims} == {"kunserve_table1"}
    names, (claim,) = asked(["kunserve/abstract-tail"])
    assert names == [claim.figure]
    everything, _ = asked(["aegaeon"])
    assert "aegaeon_fig11" in everything
    assert all(name.startswith("aegaeon_") for name in everything)


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


def into(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command writes instead of results/reproduced; it tells paths below ROOT."""
    monkeypatch.chdir(folder)  # the command changes it, and is undone here
    monkeypatch.setattr(reproduce, "ROOT", folder)
    monkeypatch.setattr(reproduce, "REPRODUCED", folder / "reproduced")
    return folder / "reproduced"


def test_a_figure_is_made_beside_the_committed_one_and_held_against_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = into(tmp_path, monkeypatch)
    assert main(["kunserve_table1"]) == 0
    page = (out / "report.md").read_text()
    assert "claims that one seed tells are the same." in page
    assert "| figure | kunserve_table1 | the same |" in page
    assert "| claim | kunserve/" in page
    assert (out / "kunserve_table1.png").is_file()


def test_claims_of_a_figure_that_fails_are_not_judged_by_an_older_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = into(tmp_path, monkeypatch)
    assert main(["kunserve_table1"]) == 0

    def broken(*_: object) -> None:
        raise RunError("the disk is full")

    monkeypatch.setattr(reproduce, "make_runs", broken)
    assert main(["kunserve_table1"]) == 1
    page = (out / "report.md").read_text()
    assert "| figure | kunserve_table1 | failed: the disk is full |" in page
    assert "| claim |" not in page


def test_one_seeds_value_is_held_against_the_committed_one_of_this_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = {claim.id: claim for claim in load(CLAIMS / "kunserve.yaml").claims}
    claim = claims["fig05-8-ttft"]
    head, made, committed = "stages,rate,seed,ttft_p99_over_one\n", tmp_path, tmp_path / "committed"
    committed.mkdir()
    (committed / "kunserve_fig05.csv").write_text(head + "8,1.5,0,4\n8,1.5,1,6\n")
    monkeypatch.setattr(reproduce, "published", lambda _: committed)
    found = []
    for value in ("4", "5", "7"):
        (made / "kunserve_fig05.csv").write_text(head + f"8,1.5,0,{value}\n")
        rows = of_the_same_seeds([claim], made)
        found += [(row.found, row.same, row.counts) for row in rows]
    assert found == [
        ("4", True, True),
        ("4 before, now 5, as seeds differ", False, False),
        ("4 before, now 7", False, True),
    ]
    (made / "kunserve_fig05.csv").write_text(head + "2,1.5,0,4\n")
    (row,) = of_the_same_seeds([claim], made)
    assert row.found.startswith("not told by one seed: no row of the figure has")
    assert not row.counts


def test_a_quick_figure_has_the_runs_of_one_seed_and_none_of_a_real_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = into(tmp_path, monkeypatch)
    assert main(["aegaeon_fig01", "aegaeon_fig10"]) == 0
    page = (out / "report.md").read_text()
    assert "| figure | aegaeon_fig01 | of the first seed |" in page
    assert "| figure | aegaeon_fig10 | needs a real engine: --tier full |" in page


def test_a_report_in_which_nothing_was_compared_says_so() -> None:
    left_out = reproduce.Row("figure", "a", "needs a real engine", same=False, counts=False)
    alone = reproduce.Row("figure", "b", "of the first seed", same=True)
    untold = reproduce.Row("claim", "p/c", "not told by one seed", same=False, counts=False)
    page = reproduce.as_page([left_out, alone, untold], quick=True)
    assert "Nothing was held against what is committed." in page
