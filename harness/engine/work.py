"""A batch in plain numbers, as it travels from the harness to workers.

Everything an iteration needs is in it, so a worker remembers nothing about requests. Knows
neither torch nor requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from harness.engine.paced_links import LinkPath

Blocks = Sequence[Sequence[int]]  # of each request of a batch, chunks first


class Chunk(NamedTuple):
    """New tokens of one request behind `context` that are cached; `samples`: they complete the
    known tokens, so the next one is picked."""

    context: int
    num_tokens: int
    samples: bool


@dataclass(slots=True)
class BatchWork:
    """Chunks, and of each decode the position of its new token. `ids`: of all tokens; where
    activations come instead, none. `blocks`: of each request, chunks first, for every step that may
    follow; where parts of the batch have their KV in several places, none."""

    chunks: Sequence[Chunk]
    decodes: Sequence[int]
    ids: Sequence[int] = ()
    blocks: Blocks = ()


@dataclass(slots=True)
class Part:
    """Requests whose KV of one page group lies in one place. Chunks and decodes by their numbers
    in the batch; `blocks`: of each of them, chunks first, on the worker `holder`."""

    holder: str
    chunks: list[int] = field(default_factory=list)
    decodes: list[int] = field(default_factory=list)
    blocks: list[list[int]] = field(default_factory=list)

    def of(self, batch: BatchWork) -> BatchWork:
        chunks = [batch.chunks[i] for i in self.chunks]
        return BatchWork(chunks, [batch.decodes[i] for i in self.decodes], (), self.blocks)


@dataclass(slots=True)
class StageWork:
    """What the worker of one stage is told. `groups`: by page group of the stage, who holds what.
    `previous`, `following`: stages' workers, if there are any. `first`: the first stage's, who
    decides when the batch ends."""

    number: int  # of the batch's run
    batch: BatchWork
    layers: range
    page_layers: int
    steps: int
    deadline_s: float | None  # on the worker's clock; None, or infinite: none
    groups: Mapping[int, Sequence[Part]]
    previous: str | None
    following: str | None
    first: str
    following_path: LinkPath  # to the next stage, or from the last to the first
    holder_paths: Mapping[str, LinkPath]
    keeps: bool = False  # the activations stay here; a `pass` sends them on


@dataclass(slots=True)
class HoldWork:
    """What a holder is told: it attends for a stage that has no KV of the requests of `groups`, by
    page group."""

    number: int
    batch: BatchWork
    requester_path: LinkPath
    groups: Mapping[int, Part]
