"""A producer's memory that a consumer on the same machine writes to (AQUA TENSORS, section 6).

The region is an anonymous file in the producer's memory (memfd). Its lease's name contains process
and descriptor. Borrowers open it for each copy and map nothing. When the producer ends, its bytes
are gone, and the next copy fails with OSError. On GPUs this would be a device's memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


def available_bytes() -> int:
    """Memory of this machine that is available without swapping. A container's limit may be
    lower."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    (kibibytes,) = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(kibibytes) * 1024


def lend(holder: str, num_bytes: int) -> tuple[str, int]:
    """Takes `num_bytes` of this process's memory now; returns (lease's name, descriptor).

    Raises OSError if less is available. This is checked first, since the kernel would give all it
    has and then end other processes.
    """
    available = available_bytes()
    if num_bytes > available:
        raise OSError(f"a lease of {num_bytes} bytes is beyond the {available} bytes available")
    descriptor = os.memfd_create(f"aqua-{holder}")
    os.posix_fallocate(descriptor, 0, num_bytes)
    return f"{holder}.{os.getpid()}.{descriptor}", descriptor


@contextmanager
def _opened(lease: str) -> Iterator[int]:
    _, process, number = lease.rsplit(".", 2)
    descriptor = os.open(f"/proc/{int(process)}/fd/{int(number)}", os.O_RDWR)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write(lease: str, blocks: Sequence[int], rows: Sequence[memoryview]) -> None:
    """Writes row i to block `blocks[i]` of the lease's region.

    All rows have the length of a block. Raises OSError if the region is gone or too short.
    """
    size = len(rows[0])
    with _opened(lease) as region:
        if os.fstat(region).st_size < (max(blocks) + 1) * size:  # a write would make it longer
            raise OSError(f"lease {lease} ends before block {max(blocks)}")
        for block, row in zip(blocks, rows, strict=True):
            if os.pwrite(region, row, block * size) != size:
                raise OSError(f"lease {lease}: block {block} was not written whole")


def read(lease: str, blocks: Sequence[int], rows: Sequence[memoryview]) -> None:
    """Reads block `blocks[i]` into row i; otherwise like `write`."""
    size = len(rows[0])
    with _opened(lease) as region:
        for block, row in zip(blocks, rows, strict=True):
            if os.preadv(region, [row], block * size) != size:
                raise OSError(f"lease {lease} ends before the end of block {block}")
