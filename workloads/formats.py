"""Readers of the public trace formats, told apart by a file's first bytes or its CSV header.

Each returns a `Trace` as the file has it: failed rows included, arrivals in seconds since the
first row (or as they stand, where the format's times already count from a start; a file whose
first row comes late by that count is shifted, and labelled).
A new CSV format is one function and one line in `CSV_FORMATS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from harness.errors import UsageError, first_line
from harness.request import Segments
from harness.schedule import Provenance, Schedule
from workloads.csv_table import CsvTable
from workloads.trace import Floats, Ints, Trace, in_order, objects, without_lead_in

MOONCAKE_BLOCK = 512  # tokens of a prompt that one of its hash ids stands for
MAX_YEARS = 200  # nanoseconds of 292 years are more than 64 bits hold
TIME_OF_DAY = r"^[0-9]{1,5}:[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?$"


def read(path: Path, provenance: Provenance) -> Trace:
    """The trace in `path`, ordered by arrival. `provenance` is what is known of the file; a
    schedule written by the harness brings its own."""
    try:
        with path.open("rb") as file:
            start = file.read(4)
        if start == b"PAR1":
            return read_schedule(path)
        if start[:1] == b"{":
            return without_lead_in(in_order(read_mooncake(path, provenance)))
        table = CsvTable.read(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    for columns, reader in CSV_FORMATS:
        if set(columns) <= set(table.columns):
            return without_lead_in(in_order(reader(table, provenance)))
    known = "; ".join(",".join(columns) for columns, _ in CSV_FORMATS)
    raise UsageError(
        f"{path} is in no known format: its first line is {','.join(table.columns)[:120]!r}, "
        f"known CSV headers are {known}; Mooncake JSON lines and schedule.parquet are read too"
    )


def read_azure(table: CsvTable, provenance: Provenance) -> Trace:
    """Azure LLM inference traces, 2023 and 2024. NanoFlow's files of lengths have the same
    header, with XXX for every timestamp."""
    text = table.columns["TIMESTAMP"].to_pandas()
    arrival_s = None
    if text.iloc[0] != "XXX":
        # seven digits of a second: more than a float of seconds since 1970 holds
        times = pd.to_datetime(text, format="ISO8601", utc=True, errors="coerce")
        table.require("TIMESTAMP", times.notna().to_numpy(), "a date and time")
        near = times.dt.year <= times.dt.year.min() + MAX_YEARS
        table.require("TIMESTAMP", near.to_numpy(), f"within {MAX_YEARS} years of the first")
        arrival_s = seconds(times - times.min())
    return Trace(
        arrival_s,
        None,
        table.integers("ContextTokens"),
        table.integers("GeneratedTokens"),
        provenance,
    )


def read_burstgpt(table: CsvTable, provenance: Provenance) -> Trace:
    arrival_s = table.numbers("Timestamp")
    return Trace(
        arrival_s - arrival_s.min(),
        table.strings("Model"),
        table.integers("Request tokens"),
        table.integers("Response tokens"),
        provenance,
    )


def read_aegaeon(table: CsvTable, provenance: Provenance) -> Trace:
    """Inputs of Aegaeon's artifact; times of day from 00:00:00 on are kept as they stand."""
    text = table.columns["Request Time"]
    of_day = pc.match_substring_regex(text, TIME_OF_DAY).to_numpy()
    table.require("Request Time", of_day, "a time HH:MM:SS.mmm")
    times = pd.to_timedelta(text.to_pandas())
    return Trace(
        seconds(times),
        table.strings("Model Name"),
        table.integers("Input Length"),
        table.integers("Output Length"),
        provenance,
    )


def read_arena(table: CsvTable, provenance: Provenance) -> Trace:
    """The VTC artifact's Chatbot Arena trace, as CSV (its pickle is not read)."""
    return Trace(
        table.numbers("req_time_s"),
        table.strings("adapter"),
        table.integers("prompt_len"),
        table.integers("output_len"),
        provenance,
    )


def read_lengths(table: CsvTable, provenance: Provenance) -> Trace:
    """Lengths alone, as Vidur, Sarathi-Serve and Etalon keep them."""
    prompts = table.integers("num_prefill_tokens")
    return Trace(None, None, prompts, table.integers("num_decode_tokens"), provenance)


def read_canonical(table: CsvTable, provenance: Provenance) -> Trace:
    return Trace(
        table.numbers("arrival_s"),
        table.strings("model"),
        table.integers("prompt_tokens"),
        table.integers("output_tokens"),
        provenance,
        priority=table.integers("priority") if "priority" in table.columns else None,
    )


CSV_FORMATS: list[tuple[tuple[str, ...], Callable[[CsvTable, Provenance], Trace]]] = [
    (("TIMESTAMP", "ContextTokens", "GeneratedTokens"), read_azure),
    (("Timestamp", "Model", "Request tokens", "Response tokens"), read_burstgpt),
    (("Request Time", "Model Name", "Input Length", "Output Length"), read_aegaeon),
    (("req_time_s", "adapter", "prompt_len", "output_len"), read_arena),
    (("num_prefill_tokens", "num_decode_tokens"), read_lengths),
    (("arrival_s", "model", "prompt_tokens", "output_tokens"), read_canonical),
]


def read_mooncake(path: Path, provenance: Provenance) -> Trace:
    """Mooncake's JSON lines: timestamp in ms, input_length, output_length, and hash_ids, one for
    each MOONCAKE_BLOCK tokens of the prompt: equal ones mean equal tokens from the start on."""
    keys = ("timestamp", "input_length", "output_length")
    shared = list[Segments]()
    rows: list[tuple[Any, ...]] = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                why = getattr(error, "msg", None) or first_line(error)
                raise UsageError(f"{path}, line {number}: not JSON ({why})") from error
            if not isinstance(record, dict):
                raise UsageError(f"{path}, line {number}: not a JSON object")
            for key in keys:
                check_json(path, number, key, record.get(key))
            rows.append(tuple(record[key] for key in keys))
            ids = record.get("hash_ids", [])
            if not isinstance(ids, list):
                raise UsageError(f"{path}, line {number}: hash_ids must be a list")
            for each in ids:
                check_json(path, number, "hash_ids", each)
            shared.append(tuple((each, MOONCAKE_BLOCK) for each in ids))
    milliseconds, prompts, outputs = (np.array(column) for column in zip(*rows, strict=True))
    return Trace(
        milliseconds / 1000,
        None,
        prompts.astype(np.int64),
        outputs.astype(np.int64),
        provenance,
        shared=objects(shared) if any(shared) else None,
    )


def check_json(path: Path, line: int, key: str, value: object) -> None:
    kind = int | float if key == "timestamp" else int
    if isinstance(value, bool) or not isinstance(value, kind) or not 0 <= value < 1e15:
        noun = "number" if key == "timestamp" else "whole number"
        # a container may be nested more deeply than it can be shown
        got = f"a {type(value).__name__}" if isinstance(value, list | dict) else repr(value)
        raise UsageError(f"{path}, line {line}: {key} must be a {noun} of at least 0, got {got}")


def read_schedule(path: Path) -> Trace:
    """A schedule.parquet of ours, exactly as it is, provenance included."""
    try:
        schedule = Schedule.load(path)
    except ValueError as error:
        raise UsageError(f"{path} cannot be read as a schedule: {error}") from error
    return Trace(
        schedule.arrival_s,
        np.array(schedule.model, dtype=object),
        schedule.prompt_tokens,
        schedule.output_tokens,
        schedule.provenance,
        None if schedule.prompts is None else objects(schedule.prompts),
        None if schedule.shared is None else objects(schedule.shared),
        schedule.priority,
    )


def seconds(durations: pd.Series) -> Floats:
    nanoseconds: Ints = durations.to_numpy().astype("timedelta64[ns]").astype(np.int64)
    return nanoseconds / 1e9
