"""Rows of a Hugging Face dataset, from the hub or from local files, as pairs of texts.

The hub's rows are streamed, so that a few rows of a large dataset cost a few, and kept in the cache
by the commit they are from. Only this file knows the library `datasets`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.configuration.checks import require
from harness.errors import UsageError
from harness.files import replaced, writing
from workloads.data import DataHome

LOCAL = {".json": "json", ".jsonl": "json", ".parquet": "parquet"}
COMMIT = re.compile(r"[0-9a-f]{40}")
ON_HUB = re.compile(r"[\w.-]+/[\w.-]+")  # OWNER/NAME
ASK_TIMEOUT_S = 30.0
ASKING = ("human", "user")
ANSWERING = ("gpt", "chatgpt", "assistant", "bing", "bard")  # ShareGPT has all of them


@dataclass(kw_only=True, slots=True)
class SourceConfig:
    """A dataset and where its texts are."""

    dataset: str  # OWNER/NAME on the hub, or a local file of LOCAL, or a folder of such
    subset: str | None = None  # one of the dataset's configurations
    files: str | None = None  # which of its files, where it names no splits of its own
    split: str
    revision: str | None = None  # a commit, tag or branch; null: the newest commit
    prompt: str | None = None  # the column of the prompts: texts, or lists of turns
    output: str | None = None  # the column of the answers; null: the turn after the prompt's
    licence: str

    def __str__(self) -> str:
        parts = [self.dataset, self.subset, self.files, f"split {self.split}"]
        parts += [f"revision {self.revision}"] if self.revision else []
        return ", ".join(part for part in parts if part)


@dataclass(slots=True)
class Texts:
    """Prompts and their answers, of the first rows of `source` that have both."""

    source: SourceConfig  # the revision is the commit that was read
    local: bool
    prompts: list[str]
    outputs: list[str]
    num_read: int  # rows that were looked at

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for text in (*self.prompts, *self.outputs):
            digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
        return digest.hexdigest()


def read(source: SourceConfig, num_rows: int | None, home: DataHome) -> Texts:
    """The first `num_rows` rows with a prompt and an answer; None: all. Raises UsageError where the
    dataset cannot be had or has no such columns."""
    path = Path(source.dataset).expanduser()
    if path.exists():
        source = replace(source, revision=None)
        return taken(source, _rows(_of_files(path, source), source), num_rows, local=True)
    of_hub = re.fullmatch(ON_HUB, source.dataset) and path.suffix not in LOCAL
    told = f"workload.text.dataset={source.dataset} is no file, no folder and no OWNER/NAME"
    require(of_hub, told)
    is_commit = source.revision is not None and COMMIT.fullmatch(source.revision) is not None
    if is_commit and (kept := _kept(source, num_rows, home)).is_file():
        return _load(kept, source)
    source = pinned(source, home)
    if (kept := _kept(source, num_rows, home)).is_file():
        return _load(kept, source)
    asked = {
        "path": source.dataset, "name": source.subset, "data_files": source.files,
        "revision": source.revision,
    }  # fmt: skip
    texts = taken(source, _rows(asked, source), num_rows, local=False)
    _keep(texts, kept)
    return texts


def pinned(source: SourceConfig, home: DataHome) -> SourceConfig:
    """The source with the commit that its revision is now, as the hub says."""
    require(home.config.download, f"{source} is not in the cache, and data.download is false")
    with in_a_sentence(source):
        from huggingface_hub import HfApi

        name, revision = source.dataset, source.revision
        about = HfApi().dataset_info(name, revision=revision, timeout=ASK_TIMEOUT_S)
    return replace(source, revision=about.sha)


def taken(
    source: SourceConfig, rows: Iterable[Mapping[str, Any]], num_rows: int | None, *, local: bool
) -> Texts:
    """The first `num_rows` of `rows` that have a prompt and an answer."""
    texts = Texts(source, local, [], [], 0)
    for row in rows:
        texts.num_read += 1
        pair = exchange(row, source)
        if pair is not None:
            texts.prompts.append(pair[0])
            texts.outputs.append(pair[1])
        if len(texts.prompts) == num_rows:
            break
    none = f"none of the {texts.num_read} rows of {source} has prompt and answer"
    require(texts.prompts, none)
    return texts


def exchange(row: Mapping[str, Any], source: SourceConfig) -> tuple[str, str] | None:
    """The prompt and the answer of a row; None where it lacks either. A conversation gives its
    first question and the answer right after it."""
    columns = ", ".join(row)
    for column in (source.prompt, source.output):
        known = column is None or column in row
        require(known, f"{source} has no column {column}; it has {columns}")
    if source.prompt is None:
        raise UsageError(
            f"workload.text.prompt must name the column of the prompts; {source} has {columns}"
        )
    prompt = row[source.prompt]
    if source.output is not None:
        pair = (prompt, row[source.output])
        return pair if all(isinstance(text, str) and text for text in pair) else None
    require(
        isinstance(prompt, list),
        f"column {source.prompt} of {source} holds no lists of turns: name the column of the "
        f"answers with workload.text.output; there are {columns}",
    )
    turns = [_turn(each) for each in prompt]
    for (who, question), (whose, answer) in pairwise(turns):
        if who in ASKING:
            return (question, answer) if whose in ANSWERING and question and answer else None
    return None


def _turn(turn: Any) -> tuple[str, str]:
    """Returns who speaks, and the text, of {"from", "value"} or {"role", "content"}; else two empty
    texts."""
    if not isinstance(turn, Mapping):
        return "", ""
    who, text = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
    return (who, text) if isinstance(who, str) and isinstance(text, str) else ("", "")


def _of_files(path: Path, source: SourceConfig) -> dict[str, Any]:
    """The arguments by which `load_dataset` reads local files."""
    found = sorted(path.glob(source.files or "*")) if path.is_dir() else [path]
    files = [str(each) for each in found if each.suffix in LOCAL]
    kinds = {LOCAL[Path(each).suffix] for each in files}
    valid = f"must be a file or a folder of files of one kind: {', '.join(LOCAL)}"
    require(len(kinds) == 1, f"workload.text.dataset={path} {valid}")
    return {"path": kinds.pop(), "data_files": {source.split: files}}


def _rows(asked: Mapping[str, Any], source: SourceConfig) -> Iterator[Mapping[str, Any]]:
    with in_a_sentence(source):
        import datasets  # takes 0.7 s, which no other workload need wait for

        datasets.disable_progress_bars()
        yield from datasets.load_dataset(**asked, split=source.split, streaming=True)


@contextmanager
def in_a_sentence(what: object) -> Iterator[None]:
    """Raises a UsageError of one sentence for whatever the Hugging Face libraries raise, of theirs
    or of what they use."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UsageError(f"{what} cannot be read: {reason}") from error


def _kept(source: SourceConfig, num_rows: int | None, home: DataHome) -> Path:
    """The path at which the cache has these rows: its name stands for the commit, the columns and
    the number of rows."""
    which = json.dumps([asdict(source), num_rows], sort_keys=True)
    digest = hashlib.sha256(which.encode()).hexdigest()[:16]
    return home.cache_dir / "hub" / f"{source.dataset.replace('/', '--')}-{digest}.parquet"


def _keep(texts: Texts, path: Path) -> None:
    table = pa.table({"prompt": texts.prompts, "output": texts.outputs})
    table = table.replace_schema_metadata({"num_read": str(texts.num_read)})
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path) as temporary:
            pq.write_table(table, temporary, compression="zstd")


def _load(path: Path, source: SourceConfig) -> Texts:
    try:
        table = pq.read_table(path)
        prompts, outputs = (table[name].to_pylist() for name in ("prompt", "output"))
        return Texts(source, False, prompts, outputs, int(table.schema.metadata[b"num_read"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is damaged: delete it") from error
