"""The bytes that an elastic worker moves: to another worker's memory, from and to the files that
stand for DRAM and SSD, and within its own memory, chunk by chunk at the links' pace.

A copy to a peer ends when the peer tells the harness that it has everything.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf

import torch

from harness.elastic.fabric import Span
from harness.engine.command_loop import CommandLoop, Work
from harness.engine.host_memory import read_all, write_all
from harness.engine.mesh import Mesh, PeerLost
from harness.engine.paced_links import PacedLinks
from harness.engine.transport import Header

Move = Callable[[Header, int, int, int], None]  # from, to, bytes


class Copies:
    """The copies that a worker makes. `memory`: this worker's, as bytes."""

    def __init__(
        self, loop: CommandLoop, memory: torch.Tensor, mesh: Mesh, links: PacedLinks
    ) -> None:
        self._loop, self._memory, self._mesh, self._links = loop, memory, mesh, links
        self.in_streams: dict[str, Work] = {
            "push": self._push, "relocate": self._relocate,
            "pull": partial(self._copy, self.read_chunk),  # from a file
            "save": partial(self._copy, self._write_chunk),  # to a file
            "between": partial(self._copy, self._copy_chunk),  # files of a host
        }  # fmt: skip

    def _copy(self, move: Move, header: Header) -> None:
        self._loop.answer(header["seq"], complete=self._chunks(header, move))

    def _push(self, header: Header) -> None:
        """Copies to another worker's memory; that worker's answer counts, which has the number
        `number`."""
        sent = self._chunks(header, self.send_chunk)
        end = {"op": "end", "number": header["number"], "complete": sent}
        with suppress(PeerLost):  # the harness knows of the death
            self._mesh.send(header["to"], end)
        self._loop.answer(header["seq"], complete=sent)

    def send_chunk(self, header: Header, source: int, target: int, size: int) -> None:
        content = self._memory[source : source + size].cpu().numpy().data
        self._mesh.send(header["to"], {"op": "bytes", "at": target}, content)

    def read_chunk(self, header: Header, source: int, target: int, size: int) -> None:
        content = torch.empty(size, dtype=torch.uint8)
        read_all(header["file"], content.numpy().data, source)
        self._memory[target : target + size].copy_(content)

    def _write_chunk(self, header: Header, source: int, target: int, size: int) -> None:
        content = self._memory[source : source + size].cpu().numpy().data
        write_all(header["file"], content, target)

    def _copy_chunk(self, header: Header, source: int, target: int, size: int) -> None:
        content = os.pread(header["file"], size, source)
        if os.pwrite(header["to_file"], content, target) != size:
            raise OSError(f"{size} bytes could not be copied from file to file")

    def _chunks(self, header: Header, move: Move) -> bool:
        """Moves all of the spans, chunk by chunk, at the links' pace. False: broken off."""
        over_s = inf
        for span in header["spans"]:
            left_s = self.carry(header, span, move, over_s)
            if left_s is None:
                return False
            over_s = left_s
        return True

    def carry(self, header: Header, span: Span, move: Move, after_s: float) -> float | None:
        """Carries one span of a copy, of which another left the links at `after_s` (inf: none).
        Returns the time at which this one has left them; None: broken off."""
        path, urgent, most = header["path"], header["urgent"], header["chunk_bytes"]
        stop, (source, target, size) = self._loop.stop_of(header["seq"]), span
        try:
            for at in range(0, size, most):
                if stop.is_set():
                    return None
                part = min(most, size - at)
                after_s = self._links.carry(path, part, urgent=urgent, after_s=after_s)
                move(header, source + at, target + at, part)
        except PeerLost:
            return None
        return after_s

    def _relocate(self, header: Header) -> None:
        """Copies within this memory; sources and targets do not overlap."""
        for source, target, size in header["spans"]:
            self._memory[target : target + size].copy_(self._memory[source : source + size])
        self._loop.answer(header["seq"], complete=True)

    # From peers, on their threads

    def on_bytes(self, header: Header, payload: bytearray) -> None:
        content = torch.frombuffer(payload, dtype=torch.uint8)
        at = header["at"]
        self._memory[at : at + len(content)].copy_(content)

    def on_end(self, header: Header) -> None:
        if self._memory.device.type == "cuda":
            torch.cuda.synchronize(self._memory.device)
        self._loop.answer(header["number"], complete=header["complete"])
