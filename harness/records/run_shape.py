"""What the files of a finished run must look like, so that all who read it need not ask.

A value of another kind or a column that is not there is told once, with the file, when the run is
loaded. A key that is lacking is told when somebody reads it: runs of earlier versions have fewer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.errors import UsageError, first_line
from harness.records.record import Status
from harness.records.tables import EVENTS, REPORTED, REQUESTS

NUMBER, NOTHING = (int, float), type(None)
OR_NOT = (int, float, NOTHING)
DISTRIBUTION = {"*": OR_NOT}


def is_interval(value: Any) -> bool:
    """Both ends, of which the sample may not reach one; none of what has no interval."""
    return value is None or (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(end, OR_NOT) and not isinstance(end, bool) for end in value)
    )


def are_numbers(value: Any) -> bool:
    """Numbers by their names; none of what the run does not know."""
    return value is None or (
        isinstance(value, dict)
        and all(isinstance(x, OR_NOT) and not isinstance(x, bool) for x in value.values())
    )


INTERVALS = {"*": is_interval}
# Of a run and of a model.
NUMBERS: dict[str, Any] = {
    "ttft_s": DISTRIBUTION, "tpot_s": DISTRIBUTION, "tbt_s": DISTRIBUTION, "e2e_s": DISTRIBUTION,
    "slo_attainment": DISTRIBUTION, "goodput_per_s": OR_NOT,
}  # fmt: skip
SHAPES: dict[str, Any] = {  # of the values that readers use; "*": of every key
    "manifest.json": {
        "engine_name": str, "simulated": bool, "choices": {"*": str}, "overrides": [str],
        "config_hash": str, "served_hash": str, "schedule_sha256": str, "seeds": {"*": int},
        "command": [str], "sources": {"*": str},
        "dataset": {"synthetic": [str]},
        "hardware": {"name": str, "device": str, "num_devices": int},
        "versions": {"*": (str, NOTHING)},
        "engine": {
            "step_times": {"*": str}, "devices": [str], "profile": (str, NOTHING),
            "nodes": [{"cpu": str, "cores": int, "gpus": [{"name": str}]}],
        },
        "machine": {"cpu": str, "num_cores": (int, NOTHING), "gpus": [{"name": str}]},
        "certificate": (dict, NOTHING),
        "status": str, "started_utc": str, "ended_utc": str,
    },
    "summary.json": {
        "num_requests": int, "num_completed": int, "num_failed": int, "num_timeouts": int,
        "duration_s": NUMBER, "asked_rate_per_s": OR_NOT, "achieved_rate_per_s": OR_NOT,
        "output_throughput_tokens_per_s": OR_NOT, "request_throughput_per_s": OR_NOT,
        "gpu_seconds": OR_NOT, "wall_s": OR_NOT, "itl_chunk_s": DISTRIBUTION,
        "fluidity_index": are_numbers, "qoe": are_numbers, "stalls": are_numbers,
        "steady": {
            "from_s": OR_NOT, "to_s": NUMBER, "reason": str, "drain_s": NUMBER,
            "backlog": [NUMBER], **NUMBERS,
        },
        "slo": {"name": str, "ttft_s": NUMBER, "tbt_s": NUMBER, "goodput": str},
        **NUMBERS,
        "models": {"*": {"num_requests": int, **NUMBERS}},
        "answers": {"num_early": (int, NOTHING)},
        "intervals_95": {
            **dict.fromkeys(("ttft_s", "tpot_s", "tbt_s", "itl_chunk_s", "e2e_s"), INTERVALS),
            "slo_attainment": INTERVALS, "goodput_per_s": is_interval,
        },
        "errors": dict,
        "verdict": {"status": str, "reasons": [str]},
    },
}  # fmt: skip


# Keys that runs of all versions have.
ALWAYS = {
    "manifest.json": ("config_hash", "schedule_sha256"),
    "summary.json": (
        "num_requests",
        "num_completed",
        "num_failed",
        "verdict",
        "ttft_s",
        "tpot_s",
        "tbt_s",
        "e2e_s",
    ),
}


class Lacking(UsageError, KeyError):
    """A KeyError to templates, which ask whether a key is there."""

    __str__ = ValueError.__str__


class Part(dict[str, Any]):
    """An object of a file. A key that it lacks is told with the file."""

    def __init__(self, path: Path, found: dict[str, Any]) -> None:
        super().__init__(found)
        self._path = path

    def __missing__(self, key: str) -> Any:
        raise Lacking(f"{self._path} is damaged: it has no {key}")


def read_part(path: Path) -> Part:
    """The object in `path`. Raises UsageError where it is none, not of its SHAPES, or not whole."""
    try:
        text = path.read_text(encoding="utf-8")
        found: Part = json.loads(text, object_hook=partial(Part, path), parse_constant=_refused)
        _check(found, SHAPES[path.name], "the file")
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is damaged: {first_line(error)}") from error
    for key in ALWAYS[path.name]:
        found[key]
    return found


def _refused(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def _check(value: Any, shape: Any, name: str) -> None:
    """ValueError where `value`, called `name`, is not of `shape`."""
    if isinstance(shape, FunctionType):
        if not shape(value):
            raise ValueError(f"{name} is {str(value)[:40]!r}")
        return
    kinds: Any = type(shape) if isinstance(shape, dict | list) else shape
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        raise ValueError(f"{name} is {str(value)[:40]!r}")
    if isinstance(shape, dict):
        inner: dict[str, Any] = shape
        for key in value if "*" in inner else inner.keys() & value.keys():
            _check(value[key], inner.get("*", inner.get(key)), key)
    elif isinstance(shape, list):
        for each in value:
            _check(each, shape[0], f"a part of {name}")


def check_requests(table: pa.Table) -> None:
    """ValueError unless `table` has a requests table's columns, with values that can be."""
    _check_columns(table, REQUESTS, optional=("sent_s", *REPORTED))
    if not len(table):
        raise ValueError("it has no row")
    chunks, times = table["chunk_tokens"], pc.list_flatten(table["token_times_s"])
    sizes = pc.list_flatten(chunks)
    numbers = {"token_times_s": times, "chunk_tokens": sizes}
    for name in ("arrival_s", "sent_s", "prompt_tokens", "output_tokens"):
        numbers[name] = table[name].drop_null()
    for name, column in numbers.items():
        values = column.to_numpy()
        if column.null_count or not np.isfinite(values).all():
            raise ValueError(f"its column {name} has values that are not finite")
        if name.endswith("tokens") and (values < 0).any():
            raise ValueError(f"its column {name} has values below 0")
    rows, per_row = pc.list_parent_indices(chunks), pc.list_value_length(table["token_times_s"])
    if (np.bincount(rows.to_numpy(), sizes.to_numpy(), len(table)) != per_row.to_numpy()).any():
        raise ValueError("its chunk_tokens do not count its token_times_s")
    unknown = set(table["status"].unique().to_pylist()) - set(get_args(Status))
    if unknown:
        raise ValueError(f"its column status has {min(unknown)!r}")


def check_events(table: pa.Table) -> None:
    """ValueError unless `table` has an events table's columns, with objects in `fields`."""
    _check_columns(table, EVENTS, optional=())
    for fields in table["fields"].unique().to_pylist():
        if not isinstance(json.loads(fields), dict):
            raise ValueError(f"its column fields has {fields[:40]!r}")


def _check_columns(table: pa.Table, schema: pa.Schema, *, optional: Sequence[str]) -> None:
    """`optional`: columns that may lack values. Runs of earlier versions lack REPORTED ones."""
    for field in schema:
        if table.column_names.count(field.name) != 1:
            if field.name in REPORTED and field.name not in table.column_names:
                continue
            raise ValueError(f"it has no column {field.name}")
        column = table[field.name]
        if column.type != field.type:
            raise ValueError(f"its column {field.name} is of {column.type}, not {field.type}")
        if column.null_count and field.name not in optional:
            raise ValueError(f"its column {field.name} has no value in some rows")
