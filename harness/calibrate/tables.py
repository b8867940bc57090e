"""Tables as commands read, show and write them: CSV files, the terminal's, and Markdown pages.

That what a command will write can be written is found out before minutes of measuring.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from jinja2 import Environment, StrictUndefined
from rich.console import Console
from rich.table import Table

from harness.errors import UsageError
from harness.files import replaced


def read_csv(path: Path, option: str = "", needed: Sequence[str] = (), **how: Any) -> pd.DataFrame:
    """The CSV file at `path`, which `option` gave, with `needed` columns; `how`: pandas'
    arguments."""
    what = f"{option} {path}".strip()
    try:
        table: pd.DataFrame = pd.read_csv(path, **how)
    except OSError as error:
        raise UsageError(f"{what} cannot be read: {error.strerror}") from error
    except ValueError as error:  # empty, not text, not CSV
        raise UsageError(f"{what} is not a CSV file: {error}") from error
    if absent := [name for name in needed if name not in table]:
        raise UsageError(f"{path} lacks {', '.join(absent)}; needed: {', '.join(needed)}")
    return table


def write_csv(table: pd.DataFrame, path: Path, option: str) -> None:
    """All digits, to the `path` that `option` gave."""
    with refusing(path, option), replaced(path) as temporary:
        table.to_csv(temporary, index=False)


def save_csv(table: pd.DataFrame, path: Path) -> None:
    """Six digits, in a folder of reports."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as temporary:
        table.to_csv(temporary, index=False, float_format="%.6g")


def text(value: object) -> str:
    if isinstance(value, float):
        return "–" if pd.isna(value) else f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"
    return str(value)


def show(console: Console, frame: pd.DataFrame, title: str) -> None:
    table = Table(title=title)
    for column in frame:
        words = not pd.api.types.is_numeric_dtype(frame[column])
        name = str(column).replace("_", " ").replace(" pct", " %")
        justify: Literal["left", "right"] = "left" if words else "right"
        table.add_column(name, justify=justify, no_wrap=words, overflow="fold")
    for row in frame.itertuples(index=False):
        table.add_row(*map(text, row))
    console.print(table)


def markdown(frame: pd.DataFrame) -> str:
    rows = (map(text, row) for row in frame.itertuples(index=False))
    return "\n".join(markdown_rows(map(str, frame.columns), rows))


def markdown_rows(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """The lines of a table."""
    names = list(head)
    cells = ([cell.replace("|", "\\|") for cell in row] for row in (names, *rows))
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return [lines[0], "| --- " * len(names) + "|", *lines[1:]]


def page(template: Path, **values: object) -> str:
    """A Markdown page from Jinja's `template`: `{{ frame | table }}`, `{{ error | signed }}`."""
    pages = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    pages.filters |= {"table": markdown, "signed": "{:+.1f}".format}
    return pages.from_string(template.read_text(encoding="utf-8")).render(values)


def writable_file(path: Path, option: str) -> None:
    """Raises UsageError where no file can be written at `path`, which `option` gave."""
    with refusing(path, option), tempfile.TemporaryFile(dir=path.parent):
        folder = path.is_dir()
    if folder:
        raise UsageError(f"{option} {path} is a folder: give the name of a file")


def writable_folder(path: Path, option: str) -> None:
    """Raises UsageError where no file can be written in `path`, once it is made."""
    with refusing(path, option):
        there = next(each for each in (path, *path.absolute().parents) if each.exists())
        with tempfile.TemporaryFile(dir=there):
            pass


@contextmanager
def refusing(path: Path, option: str) -> Iterator[None]:
    """Raises UsageError where the block cannot write to `path`, which `option` gave."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: no name of a file
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{option} {path} cannot be written: {why}") from error
