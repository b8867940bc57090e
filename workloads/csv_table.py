"""A CSV file's columns as numbers, or one sentence that names the line that is not right."""

from __future__ import annotations

import re
from csv import Error as CsvError
from csv import reader as read_row
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from harness.configuration.checks import require
from harness.errors import UsageError, first_line
from workloads.trace import Floats, Ints, Strings

WHOLE = re.compile(r"[0-9]{1,18}")
NUMBER = re.compile(r"([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,2})?")
UNNAMED = "\0"  # what names of columns that the header leaves empty begin with


@dataclass(slots=True)
class CsvTable:
    """Text columns of one length, without spaces around their values. Blank lines and columns
    without a name are left out. `line[i]`: row i's line, from 1."""

    path: Path
    columns: dict[str, pa.ChunkedArray]
    line: Ints

    @staticmethod
    def read(path: Path) -> CsvTable:
        ragged: list[csv.InvalidRow] = []

        def keep(row: csv.InvalidRow) -> str:
            ragged.append(row)
            return "skip"

        names = header(path)
        try:
            table = csv.read_csv(
                path,
                # one thread: only then does pyarrow number the rows it complains of
                read_options=csv.ReadOptions(use_threads=False, skip_rows=1, column_names=names),
                parse_options=csv.ParseOptions(invalid_row_handler=keep, ignore_empty_lines=False),
                convert_options=csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
            )
        except pa.ArrowException as error:
            raise UsageError(f"{path} cannot be read as CSV: {first_line(error)}") from error
        if ragged:
            row = ragged[0]
            raise UsageError(
                f"{path}, line {row.number}: {row.actual_columns} columns where the header "
                f"has {row.expected_columns}: {row.text[:80]!r}"
            )
        table = pa.table([pc.utf8_trim_whitespace(each) for each in table.columns], names=names)
        line = np.arange(2, len(table) + 2)
        if table.num_columns > 1:  # a blank line reads as a row of empty texts
            texts = [pc.equal(table[name], "") for name in table.column_names]
            blank = np.logical_and.reduce([text.to_numpy() for text in texts])
            table, line = table.filter(pa.array(~blank)), line[~blank]
        require(len(table), f"{path} has a header but no rows")
        columns = dict(zip(table.column_names, table.columns, strict=True))
        named = {name: column for name, column in columns.items() if not name.startswith(UNNAMED)}
        return CsvTable(path, named, line)

    def integers(self, name: str) -> Ints:
        """Whole numbers ≥ 0."""
        return self._cast(name, pa.int64(), WHOLE, "a whole number of at least 0")

    def numbers(self, name: str) -> Floats:
        """Finite numbers ≥ 0."""
        return self._cast(name, pa.float64(), NUMBER, "a number of at least 0")

    def strings(self, name: str) -> Strings:
        names: Strings = self.columns[name].to_numpy()
        self.require(name, names != "", "a name")
        return names

    def require(self, name: str, valid: npt.NDArray[np.bool_], expected: str) -> None:
        """UsageError for the first row of column `name` that is not valid."""
        if valid.all():
            return
        row = int(np.argmin(valid))
        value = self.columns[name][row].as_py()
        raise UsageError(
            f"{self.path}, line {self.line[row]}: {name} must be {expected}, got {value!r}"
        )

    def _cast(
        self, name: str, kind: pa.DataType, pattern: re.Pattern[str], expected: str
    ) -> npt.NDArray[Any]:
        column = self.columns[name]
        try:
            values: npt.NDArray[Any] = pc.cast(column, kind).to_numpy()
        except pa.ArrowException as error:
            matches = [pattern.fullmatch(text) is not None for text in column.to_pylist()]
            self.require(name, np.array(matches), expected)
            raise UsageError(f"{self.path}: {name} must be {expected}: {error}") from error
        self.require(name, np.isfinite(values) & (values >= 0), expected)
        return values


def header(path: Path) -> list[str]:
    """The names in the first line, without spaces and quotes around them. UsageError where two
    columns have one name."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            words = next(read_row([file.readline()]), [])
    except (ValueError, CsvError) as error:
        raise UsageError(f"{path} cannot be read as CSV: {first_line(error)}") from error
    require(words, f"{path} cannot be read as CSV: its first line is empty")
    names = [word.strip().strip('"').strip() for word in words]
    names = [name or f"{UNNAMED}{place}" for place, name in enumerate(names)]
    for name in names:
        once = names.count(name) == 1
        require(once, f"{path} has two columns called {name}: which is meant?")
    return names
