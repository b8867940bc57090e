"""Tensors from worker to worker, at the pace of the links between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch

from harness.engine.mesh import Mesh, PeerLost
from harness.engine.paced_links import LinkPath, PacedLinks
from harness.engine.stream import Stream
from harness.engine.transport import Header


class Peers:
    """`dtype`, `device`: of the tensors that come."""

    def __init__(
        self, mesh: Mesh, links: PacedLinks, stream: Callable[[str], Stream], dtype: torch.dtype,
        device: torch.device,
    ) -> None:  # fmt: skip
        self._mesh, self._links, self._stream = mesh, links, stream
        self._dtype, self._device = dtype, device

    def send(self, name: str, path: LinkPath, tensor: torch.Tensor, header: Header) -> None:
        """Urgent on the links of `path`. The caller computes on while the message is on the wire.
        Raises PeerLost where it is sent at once."""
        payload = bytes_of(tensor)
        arrival_s = self._links.book(path, len(payload))
        if not arrival_s:
            self._mesh.send(name, header, payload)
            return
        self._stream(f"to {name}").put(lambda: self._deliver(name, header, payload, arrival_s))

    def _deliver(self, name: str, header: Header, payload: bytes, at_s: float) -> None:
        time.sleep(max(0.0, at_s - time.monotonic()))
        with suppress(PeerLost):  # the harness knows of the death, and gives the batch up
            self._mesh.send(name, header, payload)

    def is_lost(self, name: str) -> bool:
        return self._mesh.is_lost(name)

    def tensor(self, payload: bytes, shape: Sequence[int]) -> torch.Tensor:
        flat = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        return flat.view(self._dtype).view(shape).to(self._device)


def bytes_of(tensor: torch.Tensor) -> bytes:
    content: bytes = tensor.contiguous().cpu().view(torch.uint8).numpy().tobytes()
    return content
