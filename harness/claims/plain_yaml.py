"""A YAML file as plain data: texts, numbers, truth values, lists, and mappings by text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from harness.errors import UsageError, first_line

MAX_DEPTH = 30  # an expression of a claim has 5; Python's own limit comes much later


def read_plain(path: Path) -> Any:
    """Raises UsageError for anything else, aliases included, for they can make a small file large
    or a value part of itself."""
    try:
        text = path.read_text(encoding="utf-8")
        _check_shape(text)
        content = yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        words = " ".join(str(error).split()) or first_line(error)
        raise UsageError(f"{path.name} cannot be read as YAML: {words}") from error
    _check_plain(content, path.name)
    return content


def _check_shape(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"the alias *{event.anchor} is not read: write out what it stands for")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")


def _check_plain(value: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, each in value.items():
            if not isinstance(key, str):
                raise UsageError(f"{where} has the key {key!r}, which is no text")
            _check_plain(each, f"{where}, {key}")
    elif isinstance(value, list):
        for each in value:
            _check_plain(each, where)
    elif not isinstance(value, str | int | float | bool | None):
        raise UsageError(f"{where}: {value!r} is neither a text nor a number")
