"""What NIXL is told of a worker's memory, by a stand-in for it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.engine.nixl_memory import NixlMemory

AT, THERE = 1_000_000, 5_000_000


class Nixl:
    """An agent whose transfers are over at once."""

    def __init__(self, name: str, config: object) -> None:
        self.written: list[tuple[object, object]] = []

    def register_memory(self, memory: object) -> None: ...

    def add_remote_agent(self, metadata: bytes) -> bytes:
        return metadata

    def get_xfer_descs(self, places: list[tuple[int, int, int]], kind: str) -> object:
        return kind, places

    def initialize_xfer(self, how: str, mine: object, theirs: object, name: str) -> str:
        assert (how, name) == ("WRITE", "b")
        self.written.append((mine, theirs))
        return "a handle"

    def transfer(self, handle: str) -> str:
        return "DONE"

    def release_xfer_handle(self, handle: str) -> None: ...


@pytest.mark.parametrize(
    ("device", "kind", "mine", "theirs"), [("cuda:1", "VRAM", 1, 2), ("cpu", "DRAM", 0, 0)]
)
def test_memory_is_described_with_the_device_that_it_is_on(
    monkeypatch: pytest.MonkeyPatch, device: str, kind: str, mine: int, theirs: int
) -> None:
    api = SimpleNamespace(nixl_agent=Nixl, nixl_agent_config=lambda backends: backends)
    monkeypatch.setitem(sys.modules, "nixl", SimpleNamespace(_api=api))
    monkeypatch.setitem(sys.modules, "nixl._api", api)
    memory: Any = SimpleNamespace(device=torch.device(device), data_ptr=lambda: AT)
    nobody: Any = SimpleNamespace(is_lost=lambda name: False)
    made = NixlMemory("a", memory, nobody, nobody)
    made.from_peers["here"]("b", {"begin": THERE, "device": theirs}, bytearray(b"b"))
    made.write("b", 10, 20, 4)
    told = (kind, [(AT + 10, 4, mine)]), (kind, [(THERE + 20, 4, theirs)])
    assert made._agent.written == [told]
