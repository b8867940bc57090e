"""Trace files of every format, whole and broken: read, or refused in one sentence."""

from __future__ import annotations

import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.schedule import COLUMNS, Provenance
from tests.fuzz.conftest import inputs
from tests.fuzz.guards import check_sentence, no_hang, partial_files
from tests.fuzz.values import NESTED, SCALARS
from workloads import formats
from workloads.trace import Trace

HEADERS = [",".join(form.columns) for form in formats.CSV_FORMATS]
ODD_NUMBERS = [
    "-1",
    "1e5",
    "nan",
    "inf",
    "1e99",
    "1e999",
    "٣",
    "1_0",
    "+1",
    "0x1",
    "1.",
    ".5",
    "XXX",
]
ODD_TIMES = [
    "0001-01-01",
    "9999-12-31",
    "25:61:00",
    "NaT",
    "00:00:00",
    "-00:00:01",
    "now",
    "2023-W10-1",
]
ODD_TEXTS = ['"', '"a', '"a,b"', " 5 ", "a b", "x" * 100_000, "\ufeff", "\x00", "\n", "\r"]
NUMBER_CELLS = st.one_of(
    st.integers(0, 10**5).map(str),
    st.floats(0, 10**6).map(str),
    st.sampled_from([*ODD_NUMBERS, "", "1 0", "9" * 18, "9" * 30]),
)
TIME_CELLS = st.one_of(
    st.datetimes().map(str),
    st.datetimes().map(lambda time: time.isoformat() + "Z"),
    st.times().map(lambda time: time.isoformat()),
    st.sampled_from([*ODD_TIMES, "1 day", "2023-11-16 18:17:03.9799600"]),
)
CELLS = st.one_of(
    NUMBER_CELLS, NUMBER_CELLS, TIME_CELLS, st.text(max_size=8), st.sampled_from(ODD_TEXTS)
)


def whole_cell(name: str, draw: st.DrawFn) -> str:
    if name in ("TIMESTAMP", "Request Time"):
        return draw(TIME_CELLS)
    if name in ("Model", "Model Name", "model", "adapter"):
        return draw(st.sampled_from(["m", "llama", "ChatGPT"]))
    return draw(st.integers(0, 3000).map(str))


@st.composite
def csv_text(draw: st.DrawFn) -> bytes:
    """A header of a known format and rows that fit it, with a few things changed."""
    names = draw(st.sampled_from(HEADERS)).split(",")
    rows = [[whole_cell(name, draw) for name in names] for _ in range(draw(st.integers(0, 4)))]
    table = [names, *rows]
    for _ in range(draw(st.integers(0, 3))):
        change = draw(st.sampled_from(["cell", "twice", "more", "less", "header", "order"]))
        row = draw(st.sampled_from(table))
        place = draw(st.integers(0, max(0, len(row) - 1)))
        if change == "cell" and row:
            row[place] = draw(CELLS)
        elif change == "twice":
            for each in table:
                each.append(each[0] if each else "")
        elif change == "more":
            row += draw(st.lists(CELLS, max_size=3))
        elif change == "less" and row:
            del row[place]
        elif change == "header" and names:
            names[draw(st.integers(0, len(names) - 1))] = draw(CELLS)
        elif change == "order":
            for each in table:
                each.reverse()
    comma = draw(st.sampled_from([",", ",", ", ", " ,", ";", "\t"]))
    end = draw(st.sampled_from(["\n", "\n", ",,\n", "\r\n", "\r", "\n\n", " \n"]))
    text = "".join(comma.join(row) + end for row in table)
    start = draw(st.sampled_from(["", "", "", "\ufeff", "\n", " ", "#\n"]))
    return (start + text).encode("utf-8", "surrogatepass")


@st.composite
def json_lines(draw: st.DrawFn) -> bytes:
    lines = []
    of = draw(st.sampled_from(["weka", "weka", "mooncake", "bailian", "servegen's jobs"]))
    weka, time = of == "weka", "request_id" if of == "servegen's jobs" else "timestamp"
    names: tuple[str, ...] = ("t", "in", "out") if weka else (time, "input_length", "output_length")
    names += ("chat_id", "parent_chat_id") if of == "bailian" else ()
    for _ in range(draw(st.integers(1, 4))):
        lengths = [draw(st.integers(0, 10 ** (8 - place))) for place, _ in enumerate(names)]
        row: dict[str, Any] = dict(zip(names, lengths, strict=True))
        row["hash_ids"] = draw(st.lists(st.integers(), max_size=3))
        if draw(st.booleans()):
            row[draw(st.sampled_from(list(row)))] = draw(NESTED)
        if draw(st.integers(0, 5)) == 0:
            del row[draw(st.sampled_from(list(row)))]
        if weka:
            requests = [row] * draw(st.integers(0, 3)) if draw(st.booleans()) else draw(NESTED)
            if draw(st.booleans()):
                agent = {"type": "subagent", "t": draw(SCALARS | st.just(1)), "requests": requests}
                requests = [row, agent, *draw(st.lists(st.just(row), max_size=1))]
            row = {"block_size": draw(st.integers(-1, 100)), "requests": requests}
        lines.append(json.dumps(row))
    if draw(st.booleans()):
        lines.append(draw(st.sampled_from(DEEP)))
    return "\n".join(lines).encode()


@st.composite
def conversations(draw: st.DrawFn) -> bytes:
    names = ("turn", "timestamp", "input_token_count", "output_token_count")
    turn = st.fixed_dictionaries({name: st.integers(0, 9) for name in names})
    odd = st.dictionaries(st.sampled_from(names), NESTED)
    made = draw(st.lists(st.lists(turn | turn | turn | odd, max_size=3) | NESTED, max_size=3))
    return json.dumps(made).encode()


OPEN = '{"timestamp": '
DEEP = [
    OPEN + "[" * 100_000,
    OPEN + "[" * 900 + "]" * 900 + "}",
    OPEN + '{"a":' * 50_000,
    OPEN + "9" * 5000 + "}",
    OPEN + '"' + "x" * 100_000 + '", "input_length": 1, "output_length": 1}',
    OPEN + "NaN}", OPEN + "-Infinity}", OPEN + "1e400}", "[]", "1", "null", '"', "", "{}",
]  # fmt: skip

KINDS = [pa.int64(), pa.int8(), pa.uint64(), pa.float64(), pa.float16(), pa.string(), pa.bool_(),
         pa.large_string(), pa.binary(), pa.timestamp("us"), pa.date32(), pa.list_(pa.int64()),
         pa.null(), pa.decimal128(20, 3), pa.dictionary(pa.int8(), pa.string()),
         pa.struct([("a", pa.int64())])]  # fmt: skip


@st.composite
def parquet(draw: st.DrawFn) -> bytes:
    num_rows = draw(st.integers(0, 3))
    good: dict[str, pa.Array] = {
        "arrival_s": pa.array(np.arange(num_rows, dtype=float)),
        "model": pa.array(["m"] * num_rows, pa.string()),
        "prompt_tokens": pa.array([5] * num_rows, pa.int64()),
        "output_tokens": pa.array([7] * num_rows, pa.int64()),
    }
    for name in draw(st.lists(st.sampled_from(COLUMNS), max_size=2)):
        good[name] = odd_column(draw, num_rows)
    names = list(good)
    if draw(st.integers(0, 5)) == 0:
        del good[draw(st.sampled_from(names))]
    columns = list(good.items())
    if draw(st.integers(0, 5)) == 0 and columns:
        columns.append(columns[0])
    provenance = {
        "source": "s", "origin": "o", "synthetic": [], "licence": "l", "source_sha256": "",
        "steps": [],
    }  # fmt: skip
    if draw(st.booleans()):
        provenance[draw(st.sampled_from([*provenance, "more"]))] = draw(NESTED)
    said = draw(st.sampled_from([json.dumps(provenance), "", "[]", "{", "[" * 10_000, "null"]))
    table = pa.Table.from_arrays([c for _, c in columns], names=[n for n, _ in columns])
    table = table.replace_schema_metadata({"provenance": said})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


def odd_column(draw: st.DrawFn, num_rows: int) -> pa.Array:
    kind = draw(st.sampled_from(KINDS))
    values = draw(st.lists(SCALARS, min_size=num_rows, max_size=num_rows))
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return pa.nulls(num_rows, kind)


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """`whole`, or cut short, or with some bytes changed."""
    content = bytearray(draw(whole))
    how = draw(st.sampled_from(["", "", "", "cut", "noise", "doubled"]))
    if how == "cut":
        del content[draw(st.integers(0, len(content))) :]
    elif how == "noise" and content:
        chance = random.Random(draw(st.integers(0, 10**6)))
        for _ in range(draw(st.integers(1, 20))):
            content[chance.randrange(len(content))] = chance.randrange(256)
    elif how == "doubled":
        content += bytes(content)
    return bytes(content)


def check(content: bytes) -> None:
    with TemporaryDirectory() as made:
        path = Path(made) / "trace"
        path.write_bytes(content)
        refused = ""
        try:
            with no_hang():
                check_trace(formats.read(path, Provenance("fuzz", "fuzz", [], "", "")))
        except UsageError as error:
            refused = str(error)
        if refused:
            check_sentence(refused)
            assert str(path) in refused
        assert not partial_files(Path(made))


def check_trace(trace: Trace) -> None:
    """Numbers of the right type and range, in order."""
    assert len(trace) > 0
    for tokens in (trace.prompt_tokens, trace.output_tokens):
        assert tokens.dtype == np.int64
        assert len(tokens) == len(trace)
        assert (tokens >= 0).all()
    if trace.arrival_s is not None:
        assert trace.arrival_s.dtype == np.float64
        assert np.isfinite(trace.arrival_s).all()
        assert trace.arrival_s[0] >= 0
        assert (np.diff(trace.arrival_s) >= 0).all()
    if trace.model is not None:
        assert all(isinstance(name, str) and name for name in trace.model)


@inputs(0.3)
@given(damaged(csv_text()))
def test_csv(content: bytes) -> None:
    check(content)


@inputs(0.15)
@given(damaged(json_lines()))
def test_json_lines(content: bytes) -> None:
    check(content)


@inputs(0.1)
@given(damaged(conversations()))
def test_servegen(content: bytes) -> None:
    check(content)


@inputs(0.15)
@given(damaged(parquet()))
def test_a_schedule(content: bytes) -> None:
    check(content)


@inputs(0.03)
@given(st.binary(max_size=300))
def test_noise(content: bytes) -> None:
    check(content)
