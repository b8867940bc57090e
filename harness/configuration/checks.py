"""What a configuration's values may be: each limit in one line, and one sentence for a breach.

`where` is the configuration's own key, which comes before the name of the value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf
from typing import Any

from harness.errors import UsageError


def require(holds: object, sentence: str) -> None:
    """Raises UsageError with `sentence` unless `holds` is true."""
    if not holds:
        raise UsageError(sentence)


def refuse(sentences: Mapping[str, object]) -> None:
    """Raises UsageError with the first of `sentences` that is true of a configuration."""
    for sentence, is_true in sentences.items():
        require(not is_true, sentence)


def at_least(config: Any, least: float, where: str, *names: str) -> None:
    """Requires `names` to be at least `least`. None is no value, and may stand for any."""
    for name in names:
        value = getattr(config, name)
        require(value is None or value >= least, f"{_told(value, where, name)} at least {least}")


def positive(config: Any, where: str, *names: str) -> None:
    """Requires `names` to be above 0 and finite. None is no value, and may stand for any."""
    for name in names:
        value = getattr(config, name)
        holds = value is None or 0 < value < inf
        require(holds, f"{_told(value, where, name)} above 0 and finite")


def one_of(value: object, valid: Collection[str], where: str, said: str = "valid:") -> None:
    require(value in valid, f"{where}={value} is unknown; {said} {', '.join(valid)}")


def words(config: Any, where: str, valid: Mapping[str, Collection[str]]) -> None:
    """Each of `config`'s values that `valid` names must be one of its words."""
    for name, choices in valid.items():
        one_of(getattr(config, name), choices, f"{where}{'.' if where else ''}{name}")


def _told(value: Any, where: str, name: str) -> str:
    shown = f"{value:g}" if isinstance(value, float) else value
    return f"{where}{'.' if where else ''}{name}={shown} must be"
