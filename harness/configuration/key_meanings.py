"""conf/meanings.yaml: meanings of keys that are told once for many files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

FILE = "meanings.yaml"
ANY = re.compile(r"[A-Z]+")  # a part of a name that stands for any


@dataclass(frozen=True, slots=True)
class Meaning:
    """`name`: a dotted name, whose parts in capitals stand for any name, dots included."""

    name: str
    words: str

    @property
    def of_many(self) -> bool:
        return any(map(ANY.fullmatch, self.name.split(".")))

    def fits(self, key: str) -> bool:
        parts = (".+" if ANY.fullmatch(part) else re.escape(part) for part in self.name.split("."))
        return re.fullmatch(r"\.".join(parts), key) is not None


def read_meanings(conf: Path) -> list[Meaning]:
    """In the file's order; none without the file."""
    path = conf / FILE
    if not path.is_file():
        return []
    return [Meaning(name, words) for name, words in yaml.safe_load(path.read_text()).items()]
