"""A sweep over seeds: its settings, and the numbers of a run by their dotted names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def settings(runs: Iterable[Sequence[str]]) -> dict[tuple[str, ...], list[int]]:
    """The numbers of the runs of each setting: what is overridden but for the seed."""
    found: dict[tuple[str, ...], list[int]] = {}
    for number, overrides in enumerate(runs):
        setting = tuple(word for word in overrides if not word.startswith("seed="))
        found.setdefault(setting, []).append(number)
    return found


def flattened(summary: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Every number of a summary by its dotted name; None and words are left out."""
    found: dict[str, float] = {}
    for key, value in summary.items():
        if isinstance(value, Mapping):
            found |= flattened(value, f"{prefix}{key}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[f"{prefix}{key}"] = float(value)
    return found
