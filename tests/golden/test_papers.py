"""docs/papers.md: every function that it names beside a paper's section exists, and a run calls it.

The runs are the golden ones, in Python, since compiled functions cannot be watched.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from importlib import import_module
from inspect import unwrap
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.golden.test_golden import RUNS
from tests.running import ROOT, run_here

ROW = re.compile(r"^\|(?P<section>[^|]+)\|(?P<what>[^|]+)\|(?P<functions>[^|]+)\|(?P<run>[^|]+)\|$")


class Row(NamedTuple):
    section: str
    functions: tuple[str, ...]  # module.function or module.Class.method
    run: str  # a golden run; followed by overrides, if it needs some


def rows() -> list[Row]:
    found = []
    for line in (ROOT / "docs/papers.md").read_text().splitlines():
        match = ROW.match(line)
        if match and "`" in match["functions"]:
            functions = tuple(re.findall(r"`([\w.]+)`", match["functions"]))
            found.append(Row(match["section"].strip(), functions, match["run"].strip(" `")))
    return found


def code_of(name: str) -> Any:
    """The code object of a dotted name, which forgets what runs before have called it with. Raises
    ImportError or AttributeError if it is not there."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            found: Any = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        found = found.fget if isinstance(found, property) else found
        if hasattr(found, "cache_clear"):
            found.cache_clear()
        return unwrap(found).__code__
    raise ImportError(name)


def test_the_page_names_every_paper() -> None:
    text = (ROOT / "docs/papers.md").read_text()
    for paper in ("Aegaeon", "AQUA", "BlitzScale", "KunServe"):
        assert re.search(rf"^## {paper}\b", text, re.MULTILINE), paper
    assert len(rows()) > 60
    assert {row.run.split()[0] for row in rows()} <= RUNS.keys()


@cache
def not_called() -> dict[str, list[str]]:
    """Which of the functions that the page names for a run it does not call; all runs in one
    process of their own."""
    made = subprocess.run(
        [sys.executable, "-m", "tests.golden.test_papers"],
        cwd=ROOT, env=os.environ | {"HARNESS_PURE": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr[-2000:]
    missing: dict[str, list[str]] = json.loads(made.stdout.splitlines()[-1])
    return missing


def test_what_is_not_called_and_what_is_not_there_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent, idle = "systems.kunserve.plan.gone", "systems.kunserve.plan.throughput_greedy"
    found = [Row("", (absent, idle, "systems.aqua.streaming.Streamer.serve"), "flexgen")]
    monkeypatch.setattr("tests.golden.test_papers.rows", lambda: found)
    assert watch("flexgen", tmp_path) == [f"{absent}, which is not there", idle]


@pytest.mark.parametrize("run", sorted({row.run for row in rows()}))
def test_a_run_calls_every_function_that_the_page_names(run: str) -> None:
    assert not not_called()[run]


class Seen(BaseException):
    """Everything that was wanted has been called: the rest of the run tells nothing."""


def watch(run: str, folder: Path) -> list[str]:
    wanted, gone = defaultdict(list), []
    for name in (name for row in rows() if row.run == run for name in row.functions):
        try:
            wanted[code_of(name)].append(name)
        except (ImportError, AttributeError):
            gone.append(f"{name}, which is not there")
    name, *more = run.split()

    def seen(frame: Any, event: str, argument: Any) -> None:
        if wanted.pop(frame.f_code, None) and not wanted:
            raise Seen

    before = sys.gettrace()
    sys.settrace(seen)  # which is told of calls alone, as it traces no line
    try:
        words = (f"+system={name}", "engine=sim", *RUNS[name], *more, "figure=null")
        run_here(folder / "run", *words)
    except Seen:
        pass
    finally:
        sys.settrace(before)
    return gone + [each for names in wanted.values() for each in names]


if __name__ == "__main__":
    import tempfile

    runs, found = {row.run for row in rows()}, {}
    for each in runs:
        with tempfile.TemporaryDirectory() as folder:
            found[each] = watch(each, Path(folder))
    print(json.dumps(found))
