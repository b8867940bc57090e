"""Copies between a device and host memory.

On a GPU the host memory is pinned, and copies are issued on a stream of their own, behind what the
device has computed so far. The bytes are there when `copying` ends, and are read no sooner. Without
a GPU the same calls are plain copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class Staging:
    def __init__(self, device: torch.device) -> None:
        cuda: Any = torch.cuda
        self._stream: Any = cuda.Stream(device) if device.type == "cuda" else None

    def rows(self, count: int, num_bytes: int) -> Tensor:
        """Host memory of `count` rows."""
        pinned = self._stream is not None
        return torch.empty(count, num_bytes, dtype=torch.uint8, pin_memory=pinned)

    @contextmanager
    def copying(self) -> Iterator[bool]:
        """Copies within may be `non_blocking` where it gives True. They are done when it ends, also
        by an error: their memory may be used again then."""
        if self._stream is None:
            yield False
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        try:
            with torch.cuda.stream(self._stream):
                yield True
        finally:
            self._stream.synchronize()
