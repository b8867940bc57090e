"""Mutants: small wrong changes of the policies, each with the test that must notice it.

`PAPER.yaml` lists them. `python -m tests.mutants` applies each to a copy of the tree and runs its
test. A test of behaviour that fails is worth more than a golden run that differs: its name says
what is broken. So a golden run cannot be the test of a mutant.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, fields
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
PAPERS = tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


@dataclass(slots=True, frozen=True, kw_only=True)
class Mutant:
    """One change of one file. Paths are relative to the repository."""

    id: str
    breaks: str  # the behaviour that the change breaks, in a sentence
    file: str
    old: str  # occurs once in the file
    new: str
    caught_by: str  # the id of a test, without parameters: path::name

    def applied(self, text: str) -> str:
        """The file's text after the change. Raises ValueError unless `old` occurs once."""
        if text.count(self.old) != 1:
            raise ValueError(
                f"mutant {self.id}: `old` must occur once in {self.file} and occurs "
                f"{text.count(self.old)} times"
            )
        return text.replace(self.old, self.new)


def load(paper: str) -> list[Mutant]:
    """The mutants of a paper. Raises ValueError for wrong keys, a name used twice, and a mutant
    that no longer fits the code or whose test is gone."""
    path = FOLDER / f"{paper}.yaml"
    keys = {field.name for field in fields(Mutant)}
    found: dict[str, Mutant] = {}
    for number, entry in enumerate(_entries(path), start=1):
        if set(entry) != keys or not all(isinstance(value, str) for value in entry.values()):
            raise ValueError(
                f"{path.name}: entry {number} needs {', '.join(sorted(keys))}, each a text; it has "
                f"{', '.join(sorted(entry))}"
            )
        mutant = Mutant(**entry)
        if mutant.id in found:
            raise ValueError(f"{path.name}: two mutants are named {mutant.id}")
        _check(mutant)
        found[mutant.id] = mutant
    return list(found.values())


def _entries(path: Path) -> list[dict[str, str]]:
    try:
        entries: list[dict[str, str]] = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"{path.name}: {error}") from error
    return entries


def _check(mutant: Mutant) -> None:
    path = ROOT / mutant.file
    if not path.is_file():
        raise ValueError(f"mutant {mutant.id}: there is no file {mutant.file}")
    before = path.read_text()
    after = mutant.applied(before)
    if ast.dump(ast.parse(after)) == ast.dump(ast.parse(before)):
        raise ValueError(f"mutant {mutant.id}: the code is the same after the change")
    test, _, name = mutant.caught_by.partition("::")
    if test.startswith("tests/golden/"):
        raise ValueError(f"mutant {mutant.id}: name a test of behaviour, not a golden run")
    if not (ROOT / test).is_file() or name not in _functions(ROOT / test):
        raise ValueError(f"mutant {mutant.id}: there is no test {mutant.caught_by}")


def _functions(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
