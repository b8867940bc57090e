"""Readers of the public trace formats, told apart by a file's first bytes or its CSV header.

Each returns a `Trace` as the file has it: failed rows included, arrivals in seconds since the
first row (or as they stand, where the format's times already count from a start; a file whose
first row comes late by that count is shifted, and labelled).
A new CSV format is one line in `CSV_FORMATS`, and a function where its times are no seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.configuration.checks import require
from harness.errors import UsageError
from harness.schedule import Provenance, Schedule
from workloads.csv_table import CsvTable
from workloads.json_traces import read_conversations, read_json_lines
from workloads.trace import Floats, Ints, Trace, in_order, objects, without_lead_in

JSON_FORMATS = {b"{": read_json_lines, b"[": read_conversations}
MAX_YEARS = 200  # nanoseconds of 292 years are more than 64 bits hold
YEAR_NS = 365 * 86_400 * 1e9
TIME_OF_DAY = r"^[0-9]{1,5}:[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?$"


def read(path: Path, provenance: Provenance) -> Trace:
    """The trace in `path`, ordered by arrival. `provenance` is what is known of the file; a
    schedule written by the harness brings its own."""
    try:
        with path.open("rb") as file:
            start = file.read(4)
        if start == b"PAR1":
            return read_schedule(path)
        if start[:1] in JSON_FORMATS:
            return without_lead_in(in_order(JSON_FORMATS[start[:1]](path, provenance)))
        table = CsvTable.read(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    for form in CSV_FORMATS:
        if set(form.columns) <= set(table.columns):
            return without_lead_in(in_order(form.read(table, provenance)))
    known = "; ".join(",".join(form.columns) for form in CSV_FORMATS)
    raise UsageError(
        f"{path} is in no known format: its first line is {','.join(table.columns)[:120]!r}, "
        f"known CSV headers are {known}; JSON lines of Mooncake, Bailian, WEKA and ServeGen's "
        "batch jobs, ServeGen's conversations and schedule.parquet are read too"
    )


def azure_times(table: CsvTable, column: str) -> Floats | None:
    """Arrivals from dates with seven digits of a second, more than a float of seconds since 1970
    holds; None for a file with XXX in place of every date."""
    text = table.columns[column]
    if text[0].as_py() == "XXX":
        return None
    with suppress(pa.ArrowException):  # pandas, which tells of the wrong ones, imports for 0.4 s
        utc = pc.replace_substring_regex(text, r"\+00:00$", "")
        times_ns: Ints = pc.cast(utc, pa.timestamp("ns")).to_numpy().astype(np.int64)
        if float(times_ns.max()) - float(times_ns.min()) < MAX_YEARS * YEAR_NS:
            since_s: Floats = (times_ns - times_ns.min()) / 1e9
            return since_s
    import pandas as pd

    times = pd.to_datetime(text.to_pandas(), format="ISO8601", utc=True, errors="coerce")
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
    import pandas as pd

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
    # What ServeGen's save_requests_to_csv writes of its generator's requests.
    CsvFormat("timestamp", None, "input_tokens", "output_tokens"),
    # Inputs of Aegaeon's artifact.
    CsvFormat("Request Time", "Model Name", "Input Length", "Output Length", times_of_day),
    # The VTC artifact's Chatbot Arena trace, as CSV (its pickle is not read).
    CsvFormat("req_time_s", "adapter", "prompt_len", "output_len"),
    # Lengths alone, as Vidur, Sarathi-Serve and Etalon keep them.
    CsvFormat(None, None, "num_prefill_tokens", "num_decode_tokens"),
    # Ours.
    CsvFormat("arrival_s", "model", "prompt_tokens", "output_tokens", priority="priority"),
]


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


def seconds(durations: Any) -> Floats:
    """Of pandas' durations."""
    nanoseconds: Ints = durations.to_numpy().astype("timedelta64[ns]").astype(np.int64)
    return nanoseconds / 1e9
