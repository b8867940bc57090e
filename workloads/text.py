"""Real prompts and answers as a trace: which texts, tokenised by what."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from harness.configuration.checks import at_least
from harness.errors import UsageError
from harness.schedule import Provenance
from workloads.data import DataHome
from workloads.hub import SourceConfig, Texts, read
from workloads.tokenizer import Tokenizer
from workloads.trace import Trace, objects

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
