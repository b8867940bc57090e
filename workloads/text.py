"""Real prompts and answers as a trace: which texts, tokenised by what: a model's tokenizer, from a
tokenizer.json of this machine or of the hub.

Only this file knows the library `tokenizers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.configuration.checks import at_least, require
from harness.errors import UsageError
from harness.request import Prompt
from harness.schedule import Provenance
from workloads.data import DataHome, sha256_of
from workloads.hub import ON_HUB, SourceConfig, Texts, in_a_sentence, read
from workloads.trace import Trace, objects

FILE = "tokenizer.json"
GIVEN = ("subset", "files", "split", "revision", "prompt", "output")


@dataclass(kw_only=True, slots=True)
class TextConfig:
    dataset: str  # one of `known`, OWNER/NAME of the hub, or a local file or folder
    subset: str | None  # these are as in SourceConfig; null: as `known` has it
    files: str | None
    split: str | None
    revision: str | None
    prompt: str | None
    output: str | None
    num_rows: int | None  # number of first rows with prompt and answer; null: all
    tokenizer: str | None  # a tokenizer.json, a folder with one, or OWNER/NAME of the hub
    tokenizer_revision: str | None  # on the hub
    known: dict[str, SourceConfig]

    def check(self) -> None:
        at_least(self, 1, "workload.text", "num_rows")

    def source(self) -> SourceConfig:
        """The source of the texts: one of `known`, or a dataset of its own, with what is given
        changed."""
        plain = SourceConfig(dataset=self.dataset, split="train", licence="the dataset's own")
        given = {key: getattr(self, key) for key in GIVEN if getattr(self, key) is not None}
        return replace(self.known.get(self.dataset, plain), **given)


def read_texts(config: TextConfig, home: DataHome) -> Trace:
    """Prompts with their tokens, and output lengths in tokens of the answers; no arrivals."""
    if config.tokenizer is None:
        raise UsageError(
            "workload.text.tokenizer has no default where the model has no path: give a "
            "tokenizer.json, a folder with one, or OWNER/NAME of the hub"
        )
    tokenizer = Tokenizer.load(config.tokenizer, config.tokenizer_revision, home)
    texts = read(config.source(), config.num_rows, home)
    prompts = tokenizer.prompts(texts.prompts)
    trace = Trace(
        arrival_s=None, model=None, prompts=objects(prompts), provenance=provenance(texts),
        prompt_tokens=np.array([len(prompt.ids) for prompt in prompts], np.int64),
        output_tokens=np.array(tokenizer.lengths(texts.outputs), np.int64),
    )  # fmt: skip
    read_from = f"first {len(prompts)} rows with prompt and answer, of {texts.num_read} read"
    return trace.labelled(read_from).labelled(f"tokenised by {tokenizer.about}")


def provenance(texts: Texts) -> Provenance:
    dataset = texts.source.dataset
    return Provenance(
        source=Path(dataset).name if texts.local else dataset,
        origin=f"{'local files' if texts.local else 'Hugging Face hub'}: {texts.source}",
        synthetic=[],
        licence=texts.source.licence,
        source_sha256=texts.sha256(),
        file="local dataset" if texts.local else "hub dataset",
    )


@dataclass(slots=True)
class Tokenizer:
    about: str  # name, commit if it is the hub's, sha256
    _library: Any

    @staticmethod
    def load(name: str, revision: str | None, home: DataHome) -> Tokenizer:
        """Loads `name`: a tokenizer.json, a folder with one (a checkpoint), or OWNER/NAME of the
        hub, at `revision` there. Raises UsageError where it cannot be had."""
        path = Path(name).expanduser()
        path = path / FILE if path.is_dir() else path
        about = name
        if not path.is_file():
            path = _from_hub(name, revision, home)
            about = f"{name}, revision {path.parent.name}"
        with in_a_sentence(path):
            from tokenizers import Tokenizer as Library

            library = Library.from_file(str(path))
        library.no_truncation()
        library.no_padding()
        return Tokenizer(f"{about}, sha256 {sha256_of(path)[:12]}", library)

    def prompts(self, texts: Sequence[str]) -> list[Prompt]:
        """Tokenizes the texts, with the special tokens that the model begins a prompt with, if
        any."""
        return [
            Prompt.of(text, made.ids, [end for _, end in made.offsets])
            for text, made in zip(texts, self._library.encode_batch(list(texts)), strict=True)
        ]

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Lengths of the texts in tokens, without special ones."""
        made = self._library.encode_batch(list(texts), add_special_tokens=False)
        return [len(each.ids) for each in made]


def _from_hub(name: str, revision: str | None, home: DataHome) -> Path:
    """The file in the hub's own layout, in the cache: its folder is named by the commit."""
    what = f"is no {FILE}, no folder with one and no OWNER/NAME"
    require(ON_HUB.fullmatch(name), f"workload.text.tokenizer={name} {what}")
    where, here = home.cache_dir / "hub", not home.config.download
    with in_a_sentence(f"the tokenizer {name}"):
        from huggingface_hub import hf_hub_download

        return Path(
            hf_hub_download(name, FILE, revision=revision, cache_dir=where, local_files_only=here)
        )
