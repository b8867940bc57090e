"""`python -m harness reproduce`: figures and claims again, beside the committed ones."""

from pathlib import Path

import pytest

import harness.reproduce.__main__ as reproduce
from harness.errors import RunError
from harness.reproduce.__main__ import asked, main
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
    assert "Everything is the same." in page
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
