"""A producer's memory that a consumer on the same machine writes to (AQUA TENSORS, section 6).

With a GPU it is memory of the producer's device (`device_memory.py`), else an anonymous file in its
host memory (memfd). A lease's name has the kind, the process and a descriptor of it, which holds
the bytes or the device's handle. A borrower looks for the descriptor before each copy: once the
producer has ended or has closed it, the next copy fails with OSError, although the memory may still
be mapped.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import psutil
import torch
from torch import Tensor

from systems.aqua.plugin import device_memory

HOST, DEVICE = "host", "cuda"


def available_bytes() -> int:
    """Memory of this machine that is available without swapping. A container's limit may be
    lower."""
    return int(psutil.virtual_memory().available)


@dataclass(slots=True)
class Lent:
    """Memory of this process that is lent."""

    lease: str
    descriptor: int
    memory: Tensor | None  # the device's

    def end(self) -> None:
        """No borrower opens it any more; its memory is free again."""
        os.close(self.descriptor)
        self.memory = None


def lend(holder: str, num_bytes: int) -> Lent:
    """Takes `num_bytes` of this process's device now, or of its host memory if it has none.

    Raises OSError if less is available. This is checked first, since the kernel would give all it
    has and then end other processes.
    """
    kind = DEVICE if torch.cuda.is_available() else HOST
    available = device_memory.free_bytes() if kind == DEVICE else available_bytes()
    if num_bytes > available:
        raise OSError(f"a lease of {num_bytes} bytes is beyond the {available} bytes available")
    memory = None
    descriptor = os.memfd_create(f"aqua-{holder}")
    if kind == DEVICE:
        memory, handle = device_memory.share(num_bytes)
        os.write(descriptor, handle.encode())
    else:
        os.posix_fallocate(descriptor, 0, num_bytes)
    return Lent(f"{holder}.{kind}.{os.getpid()}.{descriptor}", descriptor, memory)


class Regions:
    """The regions that a worker has open."""

    def __init__(self) -> None:
        self._open: dict[str, Tensor] = {}  # their bytes, by lease

    def rows(self, lease: str, blocks: Sequence[int], size: int) -> list[Tensor]:
        """Blocks of `size` bytes of a lease's region, in this order: [rows, size] of each run of
        neighbours, so that a run is one copy. Raises OSError if the region is gone or too short."""
        lent = self._bytes(lease)
        if (max(blocks) + 1) * size > len(lent):
            raise OSError(f"lease {lease} ends before the end of block {max(blocks)}")
        return [lent[a * size : b * size].view(b - a, size) for a, b in _runs(blocks)]

    def keep(self, leases: Collection[str]) -> None:
        """Closes all others, so that their producers have their memory back."""
        self._open = {lease: lent for lease, lent in self._open.items() if lease in leases}

    def _bytes(self, lease: str) -> Tensor:
        _, kind, process, number = lease.rsplit(".", 3)
        try:
            descriptor = os.open(f"/proc/{int(process)}/fd/{int(number)}", os.O_RDWR)
        except OSError:
            self._open.pop(lease, None)
            raise
        try:
            if lease not in self._open:
                self._open[lease] = _mapped(kind, descriptor)
        finally:
            os.close(descriptor)
        return self._open[lease]


def _mapped(kind: str, descriptor: int) -> Tensor:
    if kind == DEVICE:
        size = os.fstat(descriptor).st_size
        return device_memory.opened(os.pread(descriptor, size, 0).decode())
    return torch.frombuffer(mmap.mmap(descriptor, 0), dtype=torch.uint8)


def _runs(blocks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first, one past the last) of each run of neighbours, in order."""
    first = blocks[0]
    for before, block in zip(blocks, [*blocks[1:], None], strict=True):
        if block != before + 1:
            yield first, before + 1
            if block is not None:
                first = block
