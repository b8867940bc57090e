"""Reads what wandb has written offline: its log of transactions, in LevelDB's log format."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

HEAD = b":W&B"  # and a magic number and a version, of 7 bytes in all
BLOCK_BYTES = 2**15
CHUNK = struct.Struct("<IHB")  # CRC-32, length, type
WHOLE, FIRST, LAST = 1, 2, 4


def records(folder: Path) -> list[Any]:
    """Every record of the only run that `folder` has."""
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    content = path.read_bytes()
    assert content.startswith(HEAD)
    return [Record.FromString(each) for each in _payloads(content)]


def _payloads(content: bytes) -> Iterator[bytes]:
    at, payload = 7, b""
    while at + CHUNK.size <= len(content):
        if BLOCK_BYTES - at % BLOCK_BYTES < CHUNK.size:
            at += BLOCK_BYTES - at % BLOCK_BYTES  # the rest of a block is empty
            continue
        _, length, kind = CHUNK.unpack_from(content, at)
        at += CHUNK.size
        payload = (b"" if kind in (WHOLE, FIRST) else payload) + content[at : at + length]
        at += length
        if kind in (WHOLE, LAST):
            yield payload


def run_of(folder: Path) -> Any:
    return next(each.run for each in records(folder) if each.HasField("run"))


def config_of(folder: Path) -> dict[str, Any]:
    return {each.key: json.loads(each.value_json) for each in run_of(folder).config.update}


def history_of(folder: Path) -> list[dict[str, Any]]:
    """A dict for each step."""
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
        for each in records(folder)
        if (items := each.history.item)
    ]


def summary_of(folder: Path) -> dict[str, Any]:
    """Its last values."""
    return {
        item.key or ".".join(item.nested_key): json.loads(item.value_json)
        for each in records(folder)
        for item in each.summary.update
    }
