"""A flight in plain numbers, as it travels from the harness to the workers of its stages and to
those that hold KV of its requests. Knows neither torch nor requests.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any


@dataclass(slots=True)
class Part:
    """Requests whose KV of one page group lies in one place. Chunks and decodes by their numbers
    in the batch; `blocks`: of each of them, chunks first, on the worker `holder`."""

    holder: str
    chunks: list[int]
    decodes: list[int]
    blocks: list[list[int]]


@dataclass(slots=True)
class StageWork:
    """What one stage's worker is told. `groups`: by page group of the stage, who holds what."""

    flight: int
    model: str
    layers: tuple[int, int]
    page_layers: int
    steps: int
    deadline_s: float | None  # on the worker's clock
    chunks: list[tuple[int, int, bool]]  # tokens before, tokens, whether they sample
    decodes: list[int]  # positions
    ids: list[int]  # of the tokens; of the first stage alone
    groups: dict[int, list[Part]]
    previous: str | None  # stages' workers; None: there is none
    following: str | None
    first: str  # the first stage's, who decides when it ends
    following_path: dict[str, Any] | None  # links to the next stage, or from the last to the first
    holder_paths: dict[str, dict[str, Any]]  # links to each holder
    keeps: bool = False  # the activations stay here; a `pass` sends them on


@dataclass(slots=True)
class HoldWork:
    """What a holder is told: it attends for a stage that has no KV of these requests."""

    flight: int
    requester_path: dict[str, Any]
    chunks: list[tuple[int, int, bool]]
    decodes: list[int]
    groups: dict[int, list[Part]]  # its own parts only


def pack(work: StageWork | HoldWork) -> tuple[dict[str, Any], bytes]:
    """JSON, and token and page ids as int32."""
    numbers = array("i", getattr(work, "ids", []))
    header = {name: getattr(work, name) for name in work.__dataclass_fields__}
    header["groups"] = {
        group: [
            {"holder": part.holder, "chunks": part.chunks, "decodes": part.decodes,
             "blocks": [len(blocks) for blocks in part.blocks]}
            for part in parts
        ]
        for group, parts in work.groups.items()
    }  # fmt: skip
    for parts in work.groups.values():
        for part in parts:
            for blocks in part.blocks:
                numbers.extend(blocks)
    if "ids" in header:
        header["ids"] = len(header["ids"])
    return header, numbers.tobytes()


def stage_work(header: Mapping[str, Any], payload: bytes) -> StageWork:
    numbers = array("i", payload)
    num_ids = header["ids"]
    values = {name: header[name] for name in StageWork.__dataclass_fields__}
    values["ids"] = list(numbers[:num_ids])
    values["groups"] = _groups(header, numbers[num_ids:])
    return StageWork(**values)


def hold_work(header: Mapping[str, Any], payload: bytes) -> HoldWork:
    values = {name: header[name] for name in HoldWork.__dataclass_fields__}
    values["groups"] = _groups(header, array("i", payload))
    return HoldWork(**values)


def _groups(header: Mapping[str, Any], ids: Sequence[int]) -> dict[int, list[Part]]:
    numbers = iter(ids)
    groups: dict[int, list[Part]] = {}
    for group, parts in header["groups"].items():
        groups[int(group)] = [
            Part(
                part["holder"], part["chunks"], part["decodes"],
                [list(islice(numbers, count)) for count in part["blocks"]],
            )
            for part in parts
        ]  # fmt: skip
    return groups
