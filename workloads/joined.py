"""Several workloads in one schedule, each with its own requests, arrivals and lengths: each is the
traffic of one model, whose name is the part's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.configuration.checks import require
from harness.configuration.config import build
from harness.request import Segments
from harness.schedule import Provenance, Schedule, Synthetic
from workloads.data import DataHome
from workloads.trace import Ints
from workloads.workload import Workload


class Joined:
    """A workload of several models' workloads. `schedule()` is a function of the parts' configs,
    the seed and the datasets' bytes alone. Parts draw from streams of their own: the k-th part's
    seed is 1000 k above the run's."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        name: str
        parts: dict[str, dict[str, Any]]  # a workload's values, by the model's name

    def __init__(self, config: Config, data: DataHome, seed: int) -> None:
        require(config.parts, "workload.parts={} names no workload; valid: one or more")
        self.name = config.name
        self._parts: dict[str, Workload] = {
            name: build(part, f"workload.parts.{name}", data=data, seed=seed + 1000 * k)
            for k, (name, part) in enumerate(config.parts.items())
        }

    def schedule(self) -> Schedule:
        """The joined schedule in order of arrival; requests that arrive together are in the parts'
        order. Raises UsageError for real prompts."""
        parts = {name: part.schedule() for name, part in self._parts.items()}
        random = all(part.prompts is None for part in parts.values())
        require(random, f"workload={self.name}: workloads with real prompts cannot be joined")
        alone = all(part.sessions is None for part in parts.values())
        require(alone, f"workload={self.name}: a workload of sessions cannot be joined")
        arrival_s = np.concatenate([part.arrival_s for part in parts.values()])
        order = np.argsort(arrival_s, kind="stable")
        names = np.repeat(list(parts), [len(part) for part in parts.values()])
        tokens = {
            column: np.concatenate([getattr(part, column) for part in parts.values()])[order]
            for column in ("prompt_tokens", "output_tokens")
        }
        shared = segments(list(parts.values()))
        return Schedule(
            arrival_s=arrival_s[order], model=names[order].tolist(),
            shared=None if shared is None else [shared[row] for row in order],
            priority=priorities(list(parts.values()), order),
            provenance=joined({name: part.provenance for name, part in parts.items()}), **tokens,
        )  # fmt: skip


def segments(parts: Sequence[Schedule]) -> list[Segments] | None:
    """What the parts' prompts share, one part behind the other: the k-th of n parts has every n-th
    stream from k on, so that no two parts share any. None: no part's prompts share anything."""
    if all(part.shared is None for part in parts):
        return None
    return [
        tuple((stream * len(parts) + k, tokens) for stream, tokens in row)
        for k, part in enumerate(parts)
        for row in part.shared or [()] * len(part)
    ]


def priorities(parts: Sequence[Schedule], order: Ints) -> Ints | None:
    """The requests' priorities; 0 where a part has none. None: no part has any."""
    if all(part.priority is None for part in parts):
        return None
    of = [
        np.zeros(len(part), np.int64) if part.priority is None else part.priority for part in parts
    ]
    return np.concatenate(of)[order]


def joined(of: dict[str, Provenance]) -> Provenance:
    """The provenance of the parts, once where parts are alike."""
    every = list(of.values())

    def each(field: str) -> str:
        return " and ".join(dict.fromkeys(getattr(one, field) for one in every))

    kinds = {kind for one in every for kind in one.synthetic}
    return Provenance(
        source=each("source"), origin=each("origin"), licence=each("licence"),
        source_sha256=each("source_sha256"), file=each("file"),
        synthetic=[str(kind) for kind in Synthetic if kind in kinds],
        steps=[f"{name}: {step}" for name, one in of.items() for step in one.steps],
    )  # fmt: skip
