"""The bytes that an elastic worker moves: to another worker's memory, from and to the files that
stand for DRAM and SSD, and within its own memory, chunk by chunk at the links' pace.

A copy to a peer ends when the peer says that it has everything. That word is sent in a stream of
its own: a thread that reads from a peer must not send to one, or two that send to each other would
both have stopped reading.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

import torch

from harness.elastic.fabric import Span
from harness.engine.command_loop import CommandLoop, Work
from harness.engine.cuda import finish
from harness.engine.mesh import Mesh, OnMessage
from harness.engine.node_files import NodeFile
from harness.engine.paced_links import FIRST, LinkPath, Over, PacedLinks
from harness.engine.peer_memory import PeerMemory
from harness.engine.transport import Header, PeerLost, of_kind

Move = Callable[[Header, int, int, int], None]  # from, to, bytes


class Copies:
    """The copies that a worker makes. `memory`: this worker's, as bytes. `peers`: theirs."""

    def __init__(
        self, loop: CommandLoop, memory: torch.Tensor, files: Mapping[str, NodeFile], mesh: Mesh,
        links: PacedLinks, peers: PeerMemory,
    ) -> None:  # fmt: skip
        self._loop, self._memory, self._mesh, self._links = loop, memory, mesh, links
        self._files, self._peers = files, peers
        self._acks: dict[int, str] = {}  # copy -> the peer whose word it waits for
        self._lock = threading.Lock()  # streams and peers' threads use it
        self.in_streams: dict[str, Work] = {
            "push": self._push, "relocate": self._relocate,
            "pull": partial(self._copy, self.read_chunk),  # from a file
            "save": partial(self._copy, self._write_chunk),  # to a file
            "between": partial(self._copy, self._copy_chunk),  # files
        }  # fmt: skip
        self.from_peers: dict[str, OnMessage] = {
            "end": self._on_end, "ack": self._on_ack, **peers.from_peers,
        }  # fmt: skip

    def _copy(self, move: Move, header: Header) -> None:
        self._loop.answer(header["seq"], complete=self._chunks(header, move))

    def _push(self, header: Header) -> None:
        """Copies to another worker's memory; the answer comes once that worker has the bytes."""
        seq, peer = header["seq"], header["to"]
        with self._lock:
            self._acks[seq] = peer
        sent = self._chunks(header, self.send_chunk)
        try:
            self._mesh.send(peer, {"op": "end", "copy": seq, "complete": sent})
        except PeerLost:
            self._end(seq, complete=False)

    def send_chunk(self, header: Header, source: int, target: int, size: int) -> None:
        self._peers.write(header["to"], source, target, size)

    def read_chunk(self, header: Header, source: int, target: int, size: int) -> None:
        content = bytearray(size)
        self._files[header["file"]].read(memoryview(content), source)
        part = torch.frombuffer(content, dtype=torch.uint8)
        self._memory[target : target + size].copy_(part)

    def _write_chunk(self, header: Header, source: int, target: int, size: int) -> None:
        content = self._memory[source : source + size].cpu().numpy().data
        self._files[header["file"]].write(content, target)

    def _copy_chunk(self, header: Header, source: int, target: int, size: int) -> None:
        content = memoryview(bytearray(size))
        self._files[header["file"]].read(content, source)
        self._files[header["to_file"]].write(content, target)

    def _chunks(self, header: Header, move: Move) -> bool:
        """Moves all of the spans, chunk by chunk, at the links' pace. False: broken off."""
        over = FIRST
        for span in header["spans"]:
            left = self.carry(header, span, move, over)
            if left is None:
                return False
            over = left
        return True

    def carry(self, header: Header, span: Span, move: Move, after: Over) -> Over | None:
        """Carries one span of a copy, of which another left the links at `after`. Returns when this
        one has left them; None: broken off."""
        path = of_kind(LinkPath, header["path"])
        urgent, most = header["urgent"], header["chunk_bytes"]
        stop, (source, target, size) = self._loop.stop_of(header["seq"]), span
        try:
            for at in range(0, size, most):
                if stop.is_set():
                    return None
                part = min(most, size - at)
                after = self._links.carry(path, part, urgent=urgent, after=after)
                move(header, source + at, target + at, part)
        except PeerLost:
            return None
        return after

    def _relocate(self, header: Header) -> None:
        """Copies within this memory; sources and targets do not overlap."""
        for source, target, size in header["spans"]:
            self._memory[target : target + size].copy_(self._memory[source : source + size])
        finish(self._memory.device)
        self._loop.answer(header["seq"], complete=True)

    # From peers, on their threads

    def _on_end(self, name: str, header: Header, payload: bytearray) -> None:
        finish(self._memory.device)  # this thread put the bytes there
        self._loop.stream("acks").put(lambda: self._acknowledge(name, header))

    def _on_ack(self, name: str, header: Header, payload: bytearray) -> None:
        self._end(header["copy"], complete=header["complete"])

    def on_lost(self, name: str) -> None:
        self._peers.on_lost(name)
        with self._lock:
            waiting = [seq for seq, peer in self._acks.items() if peer == name]
        for seq in waiting:
            self._end(seq, complete=False)

    def _acknowledge(self, name: str, header: Header) -> None:
        ack = {"op": "ack", "copy": header["copy"], "complete": header["complete"]}
        with suppress(PeerLost):  # nobody waits for it any more
            self._mesh.send(name, ack)

    def _end(self, seq: int, *, complete: bool) -> None:
        """Answers the harness, once: a peer's death may be seen by two threads."""
        with self._lock:
            waited = self._acks.pop(seq, None) is not None
        if waited:
            self._loop.answer(seq, complete=complete)
