"""Bytes straight into another worker's memory, by NIXL over UCX (`engine.transport=nixl`).

A worker registers its memory once, and tells a peer that asks where it lies. What is written is
whole in the peer's memory when `write` returns, so what is said over the socket afterwards is true.
On a GPU the memory is described as VRAM; that has never run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch

from harness.engine.command_loop import CommandLoop
from harness.engine.cuda import on_gpu
from harness.engine.mesh import ARRIVE_S, Mesh, OnMessage
from harness.engine.transport import Header, PeerLost
from harness.errors import RunError

POLL_S = 2e-5
NOTICE_S = 1.0

Place = tuple[int, int, int]  # address, bytes, number of the device


class NixlMemory:
    """A `PeerMemory`. `memory`: this worker's, as bytes. `name`: the worker's."""

    def __init__(self, name: str, memory: torch.Tensor, loop: CommandLoop, mesh: Mesh) -> None:
        from nixl._api import nixl_agent, nixl_agent_config

        self._loop, self._mesh, self._memory = loop, mesh, memory
        self._kind = "VRAM" if on_gpu(memory.device) else "DRAM"
        self._device = memory.device.index or 0  # of this worker's host; a CPU has none
        self._agent: Any = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
        self._agent.register_memory(memory)
        self._using = threading.Lock()  # the agent, by streams and peers' threads
        # NIXL's name, where the memory begins, and the number of its device
        self._peers: dict[str, tuple[str, int, int]] = {}
        self._changed = threading.Condition()
        self.from_peers: Mapping[str, OnMessage] = {"where": self._on_where, "here": self._on_here}

    def write(self, peer: str, source: int, target: int, size: int) -> None:
        """Returns once `size` bytes from `source` are at `target` of the peer's memory. Raises
        PeerLost, or RunError where NIXL fails though the peer lives."""
        name, begin, device = self._found(peer)
        mine = (self._memory.data_ptr() + source, size, self._device)
        try:
            state = self._written(peer, name, mine, (begin + target, size, device))
        except Exception as error:  # NIXL's, which have no base of their own; told below
            state = repr(error)
        if state == "DONE":
            return
        if not self._mesh.is_lost(peer):  # its end may be about to be seen
            time.sleep(NOTICE_S)
        if self._mesh.is_lost(peer):
            raise PeerLost(f"worker {peer} is gone")
        raise RunError(f"NIXL cannot write to worker {peer}: {state}")

    def _written(self, peer: str, name: str, source: Place, target: Place) -> str:
        """NIXL's word for how it ended; "PROC" where the peer has died meanwhile."""
        with self._using:
            mine, theirs = (
                self._agent.get_xfer_descs([place], self._kind) for place in (source, target)
            )
            handle = self._agent.initialize_xfer("WRITE", mine, theirs, name)
            state: str = self._agent.transfer(handle)
        while state == "PROC" and not self._mesh.is_lost(peer):
            time.sleep(POLL_S)
            with self._using:
                state = self._agent.check_xfer_state(handle)
        if state == "DONE":  # else the peer is gone, and so may be what a release waits for
            with self._using:
                self._agent.release_xfer_handle(handle)
        return state

    def on_lost(self, peer: str) -> None:
        with self._changed:
            self._changed.notify_all()

    def _found(self, peer: str) -> tuple[str, int, int]:
        if peer not in self._peers:
            self._mesh.send(peer, {"op": "where"})
        with self._changed:
            self._changed.wait_for(
                lambda: peer in self._peers or self._mesh.is_lost(peer), ARRIVE_S
            )
            if peer not in self._peers:
                raise PeerLost(f"worker {peer} does not say where its memory is")
            return self._peers[peer]

    # From peers, on their threads, which send nothing

    def _on_where(self, name: str, header: Header, payload: bytearray) -> None:
        said = {"op": "here", "begin": self._memory.data_ptr(), "device": self._device}
        with self._using:
            metadata = self._agent.get_agent_metadata()

        def answer() -> None:
            with suppress(PeerLost):  # nobody waits for it any more
                self._mesh.send(name, said, metadata)

        self._loop.stream("acks").put(answer)

    def _on_here(self, name: str, header: Header, payload: bytearray) -> None:
        with self._using:
            told = self._agent.add_remote_agent(bytes(payload))
        with self._changed:
            known = told.decode() if isinstance(told, bytes) else told
            self._peers[name] = known, header["begin"], header["device"]
            self._changed.notify_all()
