"""Bytes into another worker's memory: what workers know of it, and how sockets do it.

`harness.engine.nixl_memory` does the same by NIXL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from harness.engine.mesh import Mesh, OnMessage
from harness.engine.transport import Header


class PeerMemory(Protocol):
    from_peers: Mapping[str, OnMessage]  # how to take what a peer says of it

    def write(self, peer: str, source: int, target: int, size: int) -> None:
        """Puts `size` bytes from `source` on to `target` of the peer's memory: they are there
        before anything is that the peer is told afterwards. Raises PeerLost."""

    def on_lost(self, peer: str) -> None:
        """The peer has died."""


class SocketMemory:
    """Bytes go as messages, which the peer copies to their place. `memory`: this worker's, as
    bytes."""

    def __init__(self, memory: torch.Tensor, mesh: Mesh) -> None:
        self._memory, self._mesh = memory, mesh
        self.from_peers: Mapping[str, OnMessage] = {"bytes": self._on_bytes}

    def write(self, peer: str, source: int, target: int, size: int) -> None:
        content = self._memory[source : source + size].cpu().numpy().data
        self._mesh.send(peer, {"op": "bytes", "at": target}, content)

    def on_lost(self, peer: str) -> None:
        """What waits in a send to it is told by its socket."""

    def _on_bytes(self, name: str, header: Header, payload: bytearray) -> None:
        content = torch.frombuffer(payload, dtype=torch.uint8)
        at = header["at"]
        self._memory[at : at + len(content)].copy_(content)
