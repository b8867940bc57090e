"""Folders of runs of which a file was damaged, at every command that reads one: an answer, or a
refusal in one sentence with nothing written."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from functools import cache, partial
from io import BytesIO, StringIO
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any
from unittest.mock import patch
from warnings import catch_warnings, simplefilter

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import assume, given
from hypothesis import strategies as st

from harness.claims.__main__ import main as claims
from harness.comparing.__main__ import main as compare
from harness.exporting.__main__ import FORMATS, LINES
from harness.exporting.__main__ import main as export
from harness.exporting.explain import main as explain
from harness.exporting.importing import main as read
from harness.faulting.__main__ import main as faults
from harness.records.recover import main as recover
from harness.records.run_folder import FinishedRun
from harness.records.score import main as score
from harness.reproduce.__main__ import main as reproduce
from harness.running import interrupts
from harness.selftest.__main__ import main as selftest
from plots.__main__ import main as plots
from tests.fuzz.conftest import inputs
from tests.fuzz.guards import check_sentence, no_hang, partial_files
from tests.fuzz.test_claims import places, put
from tests.fuzz.values import NESTED, TEXTS
from tests.unit.metrics.service import steady, write_run

JSON = ("manifest.json", "summary.json")
TABLES = ("requests.parquet", "events.parquet")
READ = (*JSON, *TABLES, "config.yaml")
DOORS: dict[str, Callable[[str, str], tuple[Callable[[Sequence[str]], int], list[str]]]] = {
    **{to: partial(lambda to, bad, good: (export, [bad, "--to", to]), to) for to in FORMATS},
    "explain": lambda bad, good: (explain, [bad]),
    "score": lambda bad, good: (score, [bad, "--slo", "ttft_s=0.5", "--out", f"{bad}/scored"]),
    "compare": lambda bad, good: (compare, [good, bad, "--anyway", "--out", f"{bad}/compared"]),
    "scaling": lambda bad, good: (plots, ["scaling", bad]),
    "table": lambda bad, good: (plots, ["compare", bad, good, "--out", f"{bad}/c.png"]),
    "report": lambda bad, good: (plots, ["report", bad]),
    "recover": lambda bad, good: (recover, [bad]),
}

# Words of commands that start something long: in each drawn command one names what there is not.
ODD = st.one_of(
    TEXTS, st.sampled_from(["9-4", "99", "1-", "-1", "aegaeon/", "/", "=", "a=b", "--"])
)
# No program's argument has a null byte.
ODD = ODD.filter(lambda name: name not in ("", "--") and name[0] != "-" and "\0" not in name)
LONG: dict[str, tuple[Callable[[Sequence[str]], int], tuple[str, ...]]] = {
    "selftest": (selftest, ("--only",)),
    "faults": (faults, ("--only", "--engines")),
    "claims": (claims, ("--of", "--since")),
    "reproduce": (reproduce, ("--tier", "--jobs", "--world", "--hardware", "--launcher", "")),
    "explain": (explain, ("",)),
    "export": (export, ("", "--to")),
    "compare": (compare, ("", "--floor")),
    "score": (score, ("", "--slo")),
}


@cache
def contents() -> dict[str, bytes]:
    """Of a complete run's files."""
    path = write_run(Path(mkdtemp()) / "run", steady(20))
    return {name: (path / name).read_bytes() for name in READ if (path / name).is_file()}


@st.composite
def odd_json(draw: st.DrawFn, name: str) -> bytes:
    return json.dumps(draw(odd_value(json.loads(contents()[name])))).encode()


@st.composite
def odd_value(draw: st.DrawFn, content: Any) -> Any:
    """`content`, but that a value somewhere in it is another one, or its key is gone."""
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(places(content)))
        if path and draw(st.booleans()):
            inside: Any = content
            for key in path[:-1]:
                inside = inside[key]
            del inside[path[-1]]
        else:
            content = put(deepcopy(content), path, draw(NESTED))
    return content


@st.composite
def odd_table(draw: st.DrawFn, name: str) -> bytes:
    """A column is gone or empty or of another type, or rows are."""
    table = pq.read_table(BytesIO(contents()[name]))
    column = draw(st.sampled_from(table.column_names))
    at = table.column_names.index(column)
    how = draw(st.sampled_from(["gone", "nulls", "text", "numbers", "negative", "rows", "nan"]))
    if how == "gone":
        table = table.drop_columns([column])
    elif how == "nulls":
        table = table.set_column(at, column, pa.nulls(len(table), table.schema.field(at).type))
    elif how == "rows":
        table = table.slice(0, draw(st.integers(0, 2)))
    else:
        value: Any = {"text": "x", "numbers": 7, "negative": -1.5, "nan": float("nan")}[how]
        table = table.set_column(at, column, pa.array([value] * len(table)))
    sink = BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


@st.composite
def damage(draw: st.DrawFn) -> tuple[str, bytes | None]:
    """A file's name and what it holds now; None: it is gone."""
    name = draw(st.sampled_from(list(contents())))
    whole = bytearray(contents()[name])
    how = draw(st.sampled_from(["gone", "cut", "noise", "binary", "odd", "odd", "odd"]))
    if how == "gone":
        return name, None
    if how == "odd" and name != "config.yaml":
        return name, draw(odd_json(name) if name in JSON else odd_table(name))
    if how == "cut":
        return name, bytes(whole[: draw(st.integers(0, len(whole) - 1))])
    if how == "binary":
        return name, draw(st.binary(max_size=200))
    chance = random.Random(draw(st.integers(0, 10**6)))
    for _ in range(draw(st.integers(1, 20))):
        whole[chance.randrange(len(whole))] = chance.randrange(256)
    return name, bytes(whole)


@inputs(0.5)
@given(damage(), st.sampled_from(list(DOORS)))
def test_a_damaged_run_is_read_or_refused(damaged: tuple[str, bytes | None], door: str) -> None:
    name, content = damaged
    with TemporaryDirectory() as made:
        good, bad = Path(made) / "good", Path(made) / "bad"
        for folder in (good, bad):
            folder.mkdir()
            for file, whole in contents().items():
                (folder / file).write_bytes(whole)
        (bad / name).unlink() if content is None else (bad / name).write_bytes(content)
        ends_well(*DOORS[door](str(bad), str(good)), Path(made))


@cache
def results() -> dict[str, Any]:
    """What other tools would have written of a complete run, by their names."""
    path = write_run(Path(mkdtemp()) / "run", steady(5))
    made = {to: path / to for to in FORMATS if to != "perfetto"}
    with redirect_stdout(StringIO()):
        for to, out in made.items():
            assert export([str(path), "--to", to, "--out", str(out)]) == 0
    texts = {to: out.read_text() for to, out in made.items()}
    return {
        to: [json.loads(line) for line in text.splitlines()] if to in LINES else json.loads(text)
        for to, text in texts.items()
    }


@inputs(0.4)
@given(st.data(), st.sampled_from(["import", "explain", "explain alone"]))
def test_an_odd_result_of_another_tool_is_read_or_refused(data: st.DataObject, door: str) -> None:
    tool = data.draw(st.sampled_from(list(results())))
    odd = data.draw(odd_value(deepcopy(results()[tool])))
    lines = odd if tool in LINES and isinstance(odd, list) else [odd]
    with TemporaryDirectory() as made:
        file, run = Path(made) / "result", Path(made) / "run"
        file.write_text("\n".join(map(json.dumps, lines)))
        run.mkdir()
        for name, whole in contents().items():
            (run / name).write_bytes(whole)
        commands = {
            "import": (read, [str(file), "--out", f"{made}/imported"]),
            "explain": (explain, [str(run), str(file), "--json", f"{made}/explained"]),
            "explain alone": (explain, [str(file), "--json", f"{made}/explained"]),
        }
        command, words = commands[door]
        ends_well(command, words, Path(made))
        if (Path(made) / "imported").exists():
            summary = FinishedRun.load(Path(made) / "imported").summary
            means = [summary[name]["mean"] for name in ("ttft_s", "e2e_s", "tpot_s")]
            assert all(mean is None or mean >= 0 for mean in means), means


def ends_well(command: Callable[[Sequence[str]], int], words: list[str], folder: Path) -> None:
    """An answer, or a refusal in one sentence that leaves `folder` as it was."""
    before, said = sorted(folder.rglob("*")), StringIO()
    with no_hang(), redirect_stderr(said), redirect_stdout(StringIO()), catch_warnings():
        simplefilter("error", RuntimeWarning)  # numpy's, of numbers that are none
        status = command(words)
    assert status in (0, 2), said.getvalue()
    if status == 2:
        check_sentence(said.getvalue())
        assert sorted(folder.rglob("*")) == before
    assert not partial_files(folder)


@inputs(0.1)
@given(st.sampled_from(list(LONG)), ODD, st.data())
def test_a_name_that_there_is_not_is_refused(name: str, odd: str, data: st.DataObject) -> None:
    command, options = LONG[name]
    option = data.draw(st.sampled_from(options))
    words = [*([option] if option else []), odd]
    if data.draw(st.booleans()):
        words.append(data.draw(ODD))
    assume(name != "selftest" or not all(each.isdecimal() for each in words[1:]))  # those there are
    said = StringIO()
    with (
        no_hang(),
        redirect_stderr(said),
        redirect_stdout(StringIO()),
        patch.object(interrupts, "listen"),
    ):
        try:
            status = command(words)
        except SystemExit as end:  # argparse's
            status = int(end.code or 0)
    assert status == 2, said.getvalue()
    check_sentence(said.getvalue())
