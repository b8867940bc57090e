"""Readers of the public trace formats, told apart by a file's first bytes or its CSV header.

Each returns a `Trace` as the file has it: failed rows included, arrivals in seconds since the
first row (or as they stand, where the format's times already count from a start; a file whose
first row comes late by that count is shifted, and labelled).
A new CSV format is one line in `CSV_FORMATS`, and a function where its times are no seconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from harness.configuration.checks import require
from harness.errors import UsageError, first_line
from harness.request import Segments
from harness.schedule import Provenance, Schedule
from workloads.csv_table import CsvTable
from workloads.trace import Floats, Ints, Trace, in_order, objects, without_lead_in

Record = dict[str, Any]
MOONCAKE_BLOCK = 512  # tokens of a prompt that one of its hash ids stands for
BAILIAN_BLOCK = 16
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
            return without_lead_in(in_order(read_json_lines(path, provenance)))
        table = CsvTable.read(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    for form in CSV_FORMATS:
        if set(form.columns) <= set(table.columns):
            return without_lead_in(in_order(form.read(table, provenance)))
    known = "; ".join(",".join(form.columns) for form in CSV_FORMATS)
    raise UsageError(
        f"{path} is in no known format: its first line is {','.join(table.columns)[:120]!r}, "
        f"known CSV headers are {known}; JSON lines of Mooncake, Bailian and "
        "WEKA and schedule.parquet are read too"
    )


def azure_times(table: CsvTable, column: str) -> Floats | None:
    """Arrivals from dates with seven digits of a second, more than a float of seconds since 1970
    holds; None for a file with XXX in place of every date."""
    text = table.columns[column].to_pandas()
    if text.iloc[0] == "XXX":
        return None
    times = pd.to_datetime(text, format="ISO8601", utc=True, errors="coerce")
    table.require(column, times.notna().to_numpy(), "a date and time")
    near = times.dt.year <= times.dt.year.min() + MAX_YEARS
    table.require(column, near.to_numpy(), f"within {MAX_YEARS} years of the first")
    return seconds(times - times.min())


def since_first(table: CsvTable, column: str) -> Floats:
    times_s: Floats = table.numbers(column)
    since_s: Floats = times_s - times_s.min()
    return since_s


def times_of_day(table: CsvTable, column: str) -> Floats:
    """Times of day in seconds from 00:00:00 on, kept as they stand."""
    text = table.columns[column]
    of_day = pc.match_substring_regex(text, TIME_OF_DAY).to_numpy()
    table.require(column, of_day, "a time HH:MM:SS.mmm")
    return seconds(pd.to_timedelta(text.to_pandas()))


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """The columns of a row's arrival, model, prompt and output. None: the format has none."""

    arrival: str | None
    model: str | None
    prompt: str
    output: str
    times: Callable[[CsvTable, str], Floats | None] = CsvTable.numbers
    priority: str | None = None  # a column that may be there

    @property
    def columns(self) -> list[str]:
        return [name for name in (self.arrival, self.model, self.prompt, self.output) if name]

    def read(self, table: CsvTable, provenance: Provenance) -> Trace:
        return Trace(
            None if self.arrival is None else self.times(table, self.arrival),
            None if self.model is None else table.strings(self.model),
            table.integers(self.prompt), table.integers(self.output), provenance,
            priority=table.integers(self.priority) if self.priority in table.columns else None,
        )  # fmt: skip


CSV_FORMATS = [
    # Azure LLM inference traces, 2023 and 2024; NanoFlow's files of lengths have the same header.
    CsvFormat("TIMESTAMP", None, "ContextTokens", "GeneratedTokens", azure_times),
    # BurstGPT.
    CsvFormat("Timestamp", "Model", "Request tokens", "Response tokens", since_first),
    # Inputs of Aegaeon's artifact.
    CsvFormat("Request Time", "Model Name", "Input Length", "Output Length", times_of_day),
    # The VTC artifact's Chatbot Arena trace, as CSV (its pickle is not read).
    CsvFormat("req_time_s", "adapter", "prompt_len", "output_len"),
    # Lengths alone, as Vidur, Sarathi-Serve and Etalon keep them.
    CsvFormat(None, None, "num_prefill_tokens", "num_decode_tokens"),
    # Ours.
    CsvFormat("arrival_s", "model", "prompt_tokens", "output_tokens", priority="priority"),
]


def read_json_lines(path: Path, provenance: Provenance) -> Trace:
    """JSON lines with timestamp, input_length, output_length, and hash_ids, one for each block of
    the prompt: equal ones mean equal tokens from the start on. Of Mooncake: timestamps in ms, and
    blocks of MOONCAKE_BLOCK tokens. Of Qwen-Bailian (usage traces, 2025): seconds, BAILIAN_BLOCK
    tokens, chat_id, and parent_chat_id, which is -1 where a conversation begins. Of WEKA: a
    conversation on each line, as `conversation` says, whose hash_ids are its own unless
    hash_id_scope is global."""
    lines = json_lines(path)
    first = next(lines)
    weka, bailian = "requests" in first[1], "chat_id" in first[1]
    keys: tuple[str, ...] = ("timestamp", "input_length", "output_length")
    per_s, block, base = 1 if weka or bailian else 1000, MOONCAKE_BLOCK, 0
    if weka:
        keys = ("t", "in", "out")
    elif bailian:
        keys, block = (*keys, "chat_id", "parent_chat_id"), BAILIAN_BLOCK
    shared, rows = list[Segments](), list[tuple[Any, ...]]()
    for number, record in chain([first], lines):
        requests = [record]
        if weka:
            requests, block = conversation(path, number, record)
        for request in requests:
            rows.append(numbers(path, number, request, keys))
            shared.append(blocks(path, number, request, block, base))
        scope = record.get("hash_id_scope")
        same = scope == first[1].get("hash_id_scope")
        require(same, f"{path}, line {number}: hash_id_scope={scope} is not that of the first line")
        if weka and scope != "global":
            streams = (stream for row in shared[-len(requests) :] for stream, _ in row)
            base = max(streams, default=base - 1) + 1
    require(rows, f"{path} has no requests")
    times, prompts, outputs, *chats = (np.array(column) for column in zip(*rows, strict=True))
    return Trace(
        times / per_s, None, prompts.astype(np.int64), outputs.astype(np.int64), provenance,
        shared=objects(shared) if any(shared) else None,
        **(dict(zip(("chat", "parent"), chats, strict=True)) if bailian else {}),
    )  # fmt: skip


def conversation(path: Path, line: int, record: Record) -> tuple[list[Record], int]:
    """The requests of a coding agent's conversation, which AIPerf's AgentX replays, and the tokens
    of their blocks. t: seconds since it began. The form: github.com/callanjfox/kv-cache-tester,
    docs/trace_replay_tester.md. UsageError for subagents."""
    requests: Any = record.get("requests")
    listed = isinstance(requests, list) and all(isinstance(each, dict) for each in requests)
    require(listed, f"{path}, line {line}: requests must be a list of objects")
    require(
        all(each.get("type") != "subagent" for each in requests),
        f"{path}, line {line}: a subagent runs beside its parent, which waits for it, and no "
        "request here waits for several; valid: conversations without subagents",
    )
    return requests, numbers(path, line, record, ("block_size",))[0]


def json_lines(path: Path) -> Iterator[tuple[int, Record]]:
    """The objects on the lines of `path`, with the lines' numbers."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                why = getattr(error, "msg", None) or first_line(error)
                raise UsageError(f"{path}, line {number}: not JSON ({why})") from error
            require(isinstance(record, dict), f"{path}, line {number}: not a JSON object")
            yield number, record


def numbers(path: Path, line: int, record: Record, keys: tuple[str, ...]) -> tuple[Any, ...]:
    for key in keys:
        check_json(path, line, key, record.get(key))
    return tuple(record[key] for key in keys)


def blocks(path: Path, line: int, record: Record, tokens: int, base: int = 0) -> Segments:
    """What its hash ids, counted from `base`, say of a prompt, in blocks of `tokens`."""
    ids = record.get("hash_ids", [])
    require(isinstance(ids, list), f"{path}, line {line}: hash_ids must be a list")
    for each in ids:
        check_json(path, line, "hash_ids", each)
    return tuple((base + each, tokens) for each in ids)


def full_blocks(segments: Segments, trace: Trace, row: int) -> Segments:
    """Those of a prompt's hash ids that stand for full blocks of it."""
    found, left = list[tuple[int, int]](), int(trace.prompt_tokens[row])
    for stream, tokens in segments:
        left -= tokens
        if left < 0:
            break
        found.append((stream, tokens))
    return tuple(found)


def check_json(path: Path, line: int, key: str, value: object) -> None:
    is_time = key in ("timestamp", "t")
    kind = int | float if is_time else int
    least = {"parent_chat_id": -1, "block_size": 1}.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, kind) or not least <= value < 1e15:
        noun = "number" if is_time else "whole number"
        # a container may be nested more deeply than it can be shown
        got = f"a {type(value).__name__}" if isinstance(value, list | dict) else repr(value)
        raise UsageError(
            f"{path}, line {line}: {key} must be a {noun} of at least {least}, got {got}"
        )


def read_schedule(path: Path) -> Trace:
    """A schedule.parquet of ours, exactly as it is, provenance included."""
    try:
        schedule = Schedule.load(path)
    except ValueError as error:
        raise UsageError(f"{path} cannot be read as a schedule: {error}") from error
    require(schedule.sessions is None, f"{path} has sessions: replay it with +workload=sessions")
    return Trace(
        schedule.arrival_s, np.array(schedule.model, dtype=object), schedule.prompt_tokens,
        schedule.output_tokens, schedule.provenance, priority=schedule.priority,
        prompts=None if schedule.prompts is None else objects(schedule.prompts),
        shared=None if schedule.shared is None else objects(schedule.shared),
    )  # fmt: skip


def seconds(durations: pd.Series) -> Floats:
    nanoseconds: Ints = durations.to_numpy().astype("timedelta64[ns]").astype(np.int64)
    return nanoseconds / 1e9
