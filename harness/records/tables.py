"""From the recorder to tables: one row per request with its list of token times, one per event.

Segments are expanded here, all at once: a loop over millions of tokens would take minutes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain, islice, repeat
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness.records import sessions
from harness.records.record import Chunk, Recorder, Segment, TokenRecord

BATCH_REQUESTS = 2_000  # keeps temporary arrays so small that memory once had is used again

REQUESTS = pa.schema(
    [
        ("request_id", pa.int64()),
        ("model", pa.string()),
        ("instance", pa.string()),  # that produced the first token; empty: none did
        ("arrival_s", pa.float64()),  # scheduled
        ("sent_s", pa.float64()),  # null: never sent
        ("prompt_tokens", pa.int64()),
        ("output_tokens", pa.int64()),  # asked for
        ("status", pa.string()),  # scheduled, sent, completed, failed or timeout
        ("error", pa.string()),
        ("num_preemptions", pa.int64()),
        ("token_times_s", pa.list_(pa.float64())),
        ("chunk_tokens", pa.list_(pa.int32())),  # tokens per streamed chunk, in order
        # What a server said of its answer (`harness.records.record.Reported`); null: nothing. Of
        # our own instances, cached_tokens alone, where a prefix cache was asked.
        ("server_prompt_tokens", pa.int64()),
        ("cached_tokens", pa.int64()),
        ("surplus_tokens", pa.int64()),
        ("buffered", pa.bool_()),
    ]
)
OF_REQUEST = ("request_id", "model", "arrival_s", "prompt_tokens", "output_tokens")
OF_RECORD = ("instance", "sent_s", "status", "num_preemptions")
REPORTED = {  # columns of REQUESTS, and the fields of `Reported` that they hold
    "server_prompt_tokens": "prompt_tokens",
    "cached_tokens": "cached_tokens",
    "surplus_tokens": "surplus_tokens",
    "buffered": "buffered",
}
EVENTS = pa.schema(
    [
        ("kind", pa.string()),
        ("instance", pa.string()),
        ("start_s", pa.float64()),
        ("end_s", pa.float64()),
        ("fields", pa.string()),  # JSON object
    ]
)


def requests_table(recorder: Recorder) -> pa.Table:
    """One row per scheduled request, in the schedule's order; times as in the recorder. Of sessions
    it has further columns."""
    records = iter(recorder.records.values())
    turns = any(record.request.turn is not None for record in recorder.records.values())
    schema = pa.unify_schemas([REQUESTS, sessions.COLUMNS]) if turns else REQUESTS
    batches = []
    while batch := list(islice(records, BATCH_REQUESTS)):
        batches.append(_batch(batch, schema))
    return pa.Table.from_batches(batches, schema=schema)


def events_table(recorder: Recorder) -> pa.Table:
    """One row per device event, in the order in which they were stamped."""
    events = recorder.events
    columns = {name: [event[name] for event in events] for name in EVENTS.names}
    return pa.table(columns | {"fields": _encoded(columns["fields"])}, schema=EVENTS)


def _encoded(objects: list[dict[str, Any]]) -> list[str]:
    """Writes each object as JSON. They are encoded as one list, with a string between them that no
    event has: each by itself would take twice as long."""
    mark = "\0"
    encoded = json.JSONEncoder(default=lambda number: number.item()).encode  # of numpy
    text = encoded(list(chain.from_iterable(zip(objects, repeat(mark)))))
    between = f", {encoded(mark)}"
    return text[1:-1].removesuffix(between).split(f"{between}, ") if objects else []


def _batch(records: Sequence[TokenRecord], schema: pa.Schema) -> pa.RecordBatch:
    requests = [record.request for record in records]
    columns: dict[str, Any] = {
        name: list(map(attrgetter(name), rows))
        for rows, names in ((requests, OF_REQUEST), (records, OF_RECORD))
        for name in names
    }
    # Only text that UTF-8 can hold: one lone surrogate would cost the file of all requests.
    columns["error"] = [record.error.encode(errors="replace").decode() for record in records]
    columns["token_times_s"], columns["chunk_tokens"] = _token_lists(records)
    if schema is not REQUESTS:
        columns |= sessions.columns(requests)
    return pa.record_batch(columns | _reported(records), schema=schema)


def _reported(records: Sequence[TokenRecord]) -> dict[str, Any]:
    """The columns of what servers said."""
    reports = [record.reported for record in records]
    if not any(reports):
        nulls = {name: pa.nulls(len(records), REQUESTS.field(name).type) for name in REPORTED}
        return nulls | {"cached_tokens": [record.request.cached_tokens for record in records]}
    return {
        name: [None if said is None else getattr(said, key) for said in reports]
        for name, key in REPORTED.items()
    }


def _token_lists(records: Sequence[TokenRecord]) -> tuple[pa.ListArray, pa.ListArray]:
    """(token_times_s, chunk_tokens) of `records`, what TokenRecord's methods give for each."""
    lengths = np.array([len(record.segments) for record in records], np.int64)
    segments = list(chain.from_iterable(record.segments for record in records))
    num_tokens = _field(segments, "num_tokens", np.int64)
    # Token k = 1, 2, … of its segment comes at start + k·step + growth·k·(k − 1)/2.
    k = np.arange(1, num_tokens.sum() + 1, dtype=np.float64)
    k -= np.repeat(np.cumsum(num_tokens) - num_tokens, num_tokens)
    start_s, step_s, growth_s = (
        _field(segments, name, np.float64) for name in ("start_s", "step_s", "growth_s")
    )
    times_s = np.repeat(start_s, num_tokens) + k * np.repeat(step_s, num_tokens)
    if growth_s.any():
        times_s += np.repeat(growth_s, num_tokens) * k * (k - 1) / 2
    # A chunk is one entry of all its tokens; any other segment one entry of 1 for each.
    is_chunk = np.fromiter((type(s) is Chunk for s in segments), np.bool_, len(segments))
    num_chunks = np.where(is_chunk, 1, num_tokens)
    chunk_tokens = np.repeat(np.where(is_chunk, num_tokens, 1), num_chunks).astype(np.int32)
    return (
        pa.ListArray.from_arrays(_offsets(lengths, num_tokens), pa.array(times_s)),
        pa.ListArray.from_arrays(_offsets(lengths, num_chunks), pa.array(chunk_tokens)),
    )


def _field(segments: list[Segment], name: str, dtype: type) -> npt.NDArray[Any]:
    return np.fromiter(map(attrgetter(name), segments), dtype, len(segments))


def _offsets(
    lengths: npt.NDArray[np.int64], per_segment: npt.NDArray[np.int64]
) -> npt.NDArray[np.int32]:
    """Tells where each record's list starts, given its number of segments and the entries of
    each."""
    entries = np.append(0, np.cumsum(per_segment))
    return np.asarray(entries[np.append(0, np.cumsum(lengths))], np.int32)
