"""The lists of mutants fit the code and name tests that exist; a mutant that no test sees fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests import mutants
from tests.mutants import PAPERS, Mutant, load
from tests.mutants.__main__ import judge, main

CODE = "def larger(a, b):\n    return a > b\n"
TEST = "from code_of_it import larger\n\ndef test_it():\n    assert larger(2, 1)\n"
MUTANT = Mutant(
    id="sign", breaks="The larger is the smaller.", file="code_of_it.py", old="a > b", new="a < b",
    caught_by="test_it.py::test_it",
)  # fmt: skip


@pytest.mark.parametrize("paper", PAPERS)
def test_every_mutant_fits_the_code_and_its_test_exists(paper: str) -> None:
    assert load(paper)


def test_every_paper_has_mutants() -> None:
    assert PAPERS == ("aegaeon", "aqua", "blitzscale", "kunserve")


ENTRY = {
    "id": "a", "breaks": "b", "file": "systems/kunserve/plan.py", "old": "sorted(found)",
    "new": "found", "caught_by": "tests/unit/test_mutants.py::test_every_paper_has_mutants",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"old": "found"}, "occurs"),
        ({"old": "sorted(lost)"}, "occurs 0 times"),
        ({"new": "sorted( found )"}, "the code is the same"),
        ({"file": "systems/gone/plan.py"}, "no file"),
        ({"caught_by": "tests/unit/test_mutants.py::test_gone"}, "no test"),
        ({"caught_by": "tests/golden/test_golden.py::test_it"}, "not a golden run"),
        ({"new": 1}, "each a text"),
    ],
)
def test_an_entry_that_has_rotted_is_told(
    changes: dict[str, object], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.yaml").write_text(str([ENTRY | changes]))
    monkeypatch.setattr(mutants, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match=words):
        load("x")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "code_of_it.py").write_text(CODE)
    (tmp_path / "test_it.py").write_text(TEST)
    monkeypatch.setattr("tests.mutants.__main__.copy_tree", lambda folder: None)
    return tmp_path


def test_a_survivor_is_named_and_fails_the_run(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    equal = replace(MUTANT, id="equal", new="a >= b")
    assert judge(tree, [("p", MUTANT)]) == 0
    assert judge(tree, [("p", MUTANT), ("p", equal)]) == 1
    survivors = [line for line in capsys.readouterr().out.splitlines() if "SURVIVED" in line]
    assert [line.split()[-1] for line in survivors] == ["equal"]
    assert (tree / "code_of_it.py").read_text() == CODE


def test_a_test_that_fails_without_a_mutant_proves_nothing(tree: Path) -> None:
    (tree / "code_of_it.py").write_text(CODE.replace(">", "<"))
    with pytest.raises(ValueError, match="must pass without a mutant"):
        judge(tree, [("p", replace(MUTANT, old="a < b", new="a > b"))])


def test_a_mutant_that_cannot_be_imported_is_not_caught(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judge(tree, [("p", replace(MUTANT, new="a > b\nraise ImportError"))]) == 2
    assert "BROKEN" in capsys.readouterr().out


def test_an_unknown_paper_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["aquarium"]) == 2
    assert "valid: aegaeon, aqua, blitzscale, kunserve" in capsys.readouterr().err
