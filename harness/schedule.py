"""A schedule: which request arrives when, as a file that any engine can replay.

Made by `workloads/`, read by the client. The provenance travels inside the parquet file, so
that a synthetic or rescaled schedule stays labelled wherever it is used.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from harness.errors import first_line
from harness.files import replaced
from harness.request import Request

COLUMNS = ("arrival_s", "model", "prompt_tokens", "output_tokens")


@dataclass(slots=True, eq=False)
class Provenance:
    """Where a schedule's rows come from and what was done to them, in order."""

    source: str  # the dataset's name
    origin: str  # its public home, or the file that was read
    synthetic: bool  # True where any of arrivals, lengths or requests is not from the dataset
    licence: str
    source_sha256: str  # of the file read; empty for a pure generator
    steps: list[str] = field(default_factory=list)  # e.g. "rows 0..999", "thinned to x0.5"
    models_drawn: bool = False  # the dataset says nothing of who asked which of the models

    @staticmethod
    def parsed(text: bytes) -> Provenance:
        """From JSON of its fields. Raises ValueError for anything else."""
        try:
            found = json.loads(text)
            made = Provenance(**found)
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"its provenance cannot be read: {first_line(error)}") from error
        for each in fields(Provenance):
            value = getattr(made, each.name)
            kind = {"bool": bool, "str": str, "list[str]": list}[str(each.type)]
            texts = value if isinstance(value, list) else []
            if not isinstance(value, kind) or not all(isinstance(one, str) for one in texts):
                raise ValueError(f"its provenance has no {each.type} as {each.name}")
        return made


@dataclass(slots=True, eq=False)
class Schedule:
    """Columns of equal length n, ordered by `arrival_s` (seconds since the start, ≥ 0)."""

    arrival_s: npt.NDArray[np.float64]
    model: list[str]
    prompt_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]
    provenance: Provenance

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, column)) for column in COLUMNS}
        if len(lengths) != 1:
            raise ValueError(f"a schedule's columns must be of one length, got {sorted(lengths)}")
        if len(self) == 0:
            raise ValueError("the schedule is empty: no request is left to send")
        if not np.isfinite(self.arrival_s).all():
            raise ValueError("arrival_s must be finite numbers")
        if self.arrival_s[0] < 0 or (np.diff(self.arrival_s) < 0).any():
            raise ValueError("arrival_s must start at 0 or later and never decrease")
        for column in ("prompt_tokens", "output_tokens"):
            values = getattr(self, column)
            if (values < 1).any():
                row = int(np.argmax(values < 1))
                raise ValueError(f"row {row}: {column} must be at least 1, got {values[row]}")

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def duration_s(self) -> float:
        """First to last arrival."""
        return float(self.arrival_s[-1] - self.arrival_s[0])

    @property
    def rate_per_s(self) -> float:
        """Mean arrival rate; with one request or a zero duration there is none: nan."""
        return (len(self) - 1) / self.duration_s if self.duration_s > 0 else float("nan")

    def requests(self) -> list[Request]:
        rows = zip(
            self.arrival_s.tolist(),
            self.model,
            self.prompt_tokens.tolist(),
            self.output_tokens.tolist(),
            strict=True,
        )
        return [Request(i, *row) for i, row in enumerate(rows)]

    def sha256(self) -> str:
        """Of the four columns, independent of how a file encodes them."""
        digest = hashlib.sha256()
        digest.update(np.ascontiguousarray(self.arrival_s, "<f8").tobytes())
        digest.update("\0".join(self.model).encode())
        for column in (self.prompt_tokens, self.output_tokens):
            digest.update(np.ascontiguousarray(column, "<i8").tobytes())
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        table = pa.table({column: getattr(self, column) for column in COLUMNS})
        provenance = {name: getattr(self.provenance, name) for name in Provenance.__slots__}
        table = table.replace_schema_metadata({"provenance": json.dumps(provenance)})
        with replaced(path) as temporary:
            pq.write_table(table, temporary)

    @staticmethod
    def load(path: Path) -> Schedule:
        """Reads what `save` wrote. Raises ValueError for any other file."""
        try:
            table = pq.read_table(path)
        except (pa.ArrowException, OSError, KeyError) as error:
            raise ValueError(first_line(error)) from error
        missing = [column for column in COLUMNS if table.column_names.count(column) != 1]
        metadata: dict[bytes, bytes] = table.schema.metadata or {}
        if missing or b"provenance" not in metadata:
            raise ValueError(f"it lacks {', '.join(missing) or 'its provenance'}")
        tokens = {name: _column(table, name, pa.int64()) for name in COLUMNS[2:]}
        return Schedule(
            arrival_s=_column(table, "arrival_s", pa.float64()).to_numpy(),
            model=_column(table, "model", pa.string()).to_pylist(),
            prompt_tokens=tokens["prompt_tokens"].to_numpy(),
            output_tokens=tokens["output_tokens"].to_numpy(),
            provenance=Provenance.parsed(metadata[b"provenance"]),
        )


def _column(table: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    """`table`'s column, where all of its values are of `kind` without loss; else ValueError."""
    column = table[name]
    number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    try:
        cast = column.cast(kind) if number != pa.types.is_string(kind) else None
        if cast is not None and not cast.null_count:
            cast.validate(full=True)  # texts are UTF-8
            return cast
    except pa.ArrowException as error:
        raise ValueError(f"{name}: {first_line(error)}") from error
    raise ValueError(f"{name} must be {kind} in every row, and is {column.type}")
