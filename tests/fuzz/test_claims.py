"""Ledgers of claims: judged, or refused in one sentence with nothing written."""

from __future__ import annotations

import json
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.claims import __main__ as command
from tests.fuzz.conftest import inputs
from tests.fuzz.guards import check_sentence, no_hang, partial_files
from tests.fuzz.values import NESTED, TEXTS

TABLE = "system,seed,x,y,text\na,0,1,1.0,p\na,0,2,0.8,q\na,1,1,0.9,\nb,0,1,0,p\nb,1,,,r\n"
ABOUT = {"engines": ["sim"], "hardware": ["h"], "synthetic": True, "runs_git": []}
PART = {"mean": {"column": "y", "where": {"system": "a"}}}
EXPRESSIONS: list[Any] = [
    {"constant": 3},
    PART,
    {"crossing": {"x": "x", "y": "y"}},
    {"cell": {"column": "y", "where": {"system": "a", "seed": 1}}},
    {"ratio": [PART, {"highest": {"column": "x"}}]},
    {"most": [PART, {"lowest": {"column": "y", "where": {"text": "p"}}}]},
    {"ratio_of_means": {"x": "x", "column": "y", "where": [{"system": "a"}, {"system": "b"}]}},
]
COLUMNS = st.sampled_from(["system", "seed", "x", "y", "text", "none", ""])
SNIPPETS = [
    "- &a [*a]", "a: *b", "!!python/object/apply:os.getcwd []", "2020-01-01", "!!binary aGk=",
    "? [1, 2]\n: 3", "{1: 2}", "null: 1", "[" * 100_000, "a: {" * 5000, "\t", "'", "---\n---",
    "9" * 5000, "1e999", "!!set {a}", "<<: 1", "${oc.env:HOME}", "???", "\x00", ": : :",
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]


def put(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    inside = content
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return content


@st.composite
def ledger(draw: st.DrawFn) -> str:
    """One of two claims, with a few values, keys or lines that do not belong there."""
    claims = [
        {"id": f"c{i}", "section": "1", "quantity": "q", "published": 2.0, "unit": "x",
         "figure": "p_fig01", "value": deepcopy(draw(st.sampled_from(EXPRESSIONS))),
         "exact": draw(st.booleans())}
        for i in range(draw(st.integers(1, 2)))
    ]  # fmt: skip
    variations = {"figures": ["p_fig01"], "systems": {"a": {"other": "b"}}}
    content: Any = {"title": "t", "venue": "v", "claims": claims, "variations": variations}
    for _ in range(draw(st.integers(0, 3))):
        path = draw(st.sampled_from(places(content)))
        kind = draw(st.sampled_from(["value", "column", "expression", "key"]))
        if kind == "value":
            content = put(content, path, draw(NESTED))
        elif kind == "column":
            content = put(content, path, draw(COLUMNS))
        elif kind == "expression":
            content = put(content, path, deepcopy(draw(st.sampled_from(EXPRESSIONS))))
        else:
            content = put(content, path, {draw(TEXTS): draw(NESTED)})
    text = yaml.safe_dump(content, allow_unicode=True)
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(SNIPPETS)) + text[at:]
    elif draw(st.integers(0, 5)) == 0:
        text = text[: draw(st.integers(0, len(text)))]
    return text


@inputs(0.15)
@given(ledger())
def test_a_ledger_is_judged_or_refused(text: str) -> None:
    with TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "p.yaml").write_text(text, encoding="utf-8", errors="surrogateescape")
        published = folder / "published" / "p"
        published.mkdir(parents=True)
        (published / "p_fig01.csv").write_text(TABLE)
        (published / "p_fig01.json").write_text(json.dumps(ABOUT))
        said = StringIO()
        where = patch.multiple(command, CLAIMS=folder, PUBLISHED=folder / "published")
        with where, no_hang(), redirect_stderr(said), redirect_stdout(StringIO()):
            status = command.main([])
        assert status in (0, 2)
        if status == 2:
            check_sentence(said.getvalue())
            assert sorted(path.name for path in folder.iterdir()) == ["p.yaml", "published"]
        else:
            json.loads((folder / "p.json").read_text())
            assert (folder / "README.md").is_file()
        assert not partial_files(folder)
