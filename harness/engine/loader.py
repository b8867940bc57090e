"""Weights on their way to the device's weights buffer, in the two ways that Aegaeon compares.

§5.2, quick model loading: chunks go through a page-locked stage buffer, some being read from the
model cache by several threads while another is on the bus. Against it, what tensor libraries do:
one parameter after the other, each in fresh memory. Sources are files: those of the model cache
lie in memory, others on the SSD.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from harness.engine.cuda import finish, staging
from harness.engine.layout import tensor_places
from harness.engine.node_files import NodeFile
from harness.model_spec import ModelSpec

NUM_SLOTS = 4  # of the stage buffer, each filled by a thread of its own


@dataclass(slots=True, frozen=True)
class Source:
    """A file with a model's bytes; `fill` is a file in the model cache that is to have them too."""

    file: NodeFile
    fill: NodeFile | None

    def read(self, into: torch.Tensor, offset_bytes: int) -> None:
        """Fills `into`, bytes in host memory, from `offset_bytes` of the file on."""
        content = into.numpy().data
        self.file.read(content, offset_bytes)
        if self.fill is not None:
            self.fill.write(content, offset_bytes)


class WeightsLoader:
    """`buffer`: the device's weights, as bytes. One load at a time."""

    def __init__(self, buffer: torch.Tensor, stage_bytes: int, link: HostLink) -> None:
        self._buffer, self._link = buffer, link
        self._slot_bytes = stage_bytes // NUM_SLOTS
        stage = staging(NUM_SLOTS * self._slot_bytes, buffer.device)
        self._slots = stage.split(self._slot_bytes)
        self._readers = ThreadPoolExecutor(NUM_SLOTS, "stage")

    def staged(self, source: Source, num_bytes: int, at_bytes: int, stop: threading.Event) -> bool:
        """False: `stop` was set, and some chunks are missing."""
        starts = iter(range(0, num_bytes, self._slot_bytes))

        def read(start: int, slot: torch.Tensor) -> tuple[int, torch.Tensor, Future[None]]:
            chunk = slot[: num_bytes - start]
            return start, slot, self._readers.submit(source.read, chunk, start)

        reads = deque(read(start, slot) for slot, start in zip(self._slots, starts, strict=False))
        while reads:
            start, slot, filled = reads.popleft()
            filled.result()
            if stop.is_set():
                wait([filled for _, _, filled in reads])  # the slots must be free for the next load
                return False
            self._place(slot[: num_bytes - start], at_bytes + start)
            for start in starts:
                reads.append(read(start, slot))
                break
        return True

    def by_parameter(self, source: Source, spec: ModelSpec, at_bytes: int) -> None:
        """Each tensor read into pageable memory, moved to device memory and then put in place."""
        for place in tensor_places(spec):
            host = torch.empty(len(place), dtype=torch.uint8)
            source.read(host, place.start)
            parameter = torch.empty_like(host, device=self._buffer.device)
            with self._link.carry(len(place)):
                parameter.copy_(host)
            self._buffer[at_bytes + place.start : at_bytes + place.stop].copy_(parameter)
        finish(self._buffer.device)

    def move(self, num_bytes: int, from_bytes: int, to_bytes: int) -> None:
        """Moves bytes towards the buffer's start, in parts, since the two places may overlap."""
        part = from_bytes - to_bytes
        assert part > 0, (from_bytes, to_bytes)
        for done in range(0, num_bytes, part):
            length = min(part, num_bytes - done)
            target = self._buffer[to_bytes + done : to_bytes + done + length]
            target.copy_(self._buffer[from_bytes + done : from_bytes + done + length])
        finish(self._buffer.device)

    def _place(self, chunk: torch.Tensor, at_bytes: int) -> None:
        with self._link.carry(len(chunk)):
            self._buffer[at_bytes : at_bytes + len(chunk)].copy_(chunk, non_blocking=True)
            finish(self._buffer.device)


class HostLink:
    """Shared by the threads that use it at the same time. `bytes_per_s`: None for no limit."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at_s = 0.0

    @contextmanager
    def carry(self, num_bytes: int) -> Iterator[None]:
        """The block copies `num_bytes`; returns once the link could have carried them after
        those before."""
        if self._bytes_per_s is None:
            yield
            return
        with self._lock:
            begin_s = max(time.monotonic(), self._free_at_s)
            over_s = self._free_at_s = begin_s + num_bytes / self._bytes_per_s
        yield
        time.sleep(max(0.0, over_s - time.monotonic()))
