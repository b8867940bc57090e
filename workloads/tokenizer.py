"""A model's tokenizer, from a tokenizer.json of this machine or of the hub.

Only this file knows the library `tokenizers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.configuration.checks import require
from harness.request import Prompt
from workloads.data import DataHome, sha256_of
from workloads.hub import ON_HUB, in_a_sentence

FILE = "tokenizer.json"


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
