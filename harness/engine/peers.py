"""Tensors from worker to worker, at the pace of the links between them."""

from __future__ import annotations

import torch

from harness.engine.mesh import Mesh
from harness.engine.paced_links import LinkPath, PacedLinks
from harness.engine.transport import Header


class Peers:
    """`dtype`, `device`: of the tensors that come."""

    def __init__(
        self, mesh: Mesh, links: PacedLinks, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._mesh, self._links = mesh, links
        self._dtype, self._device = dtype, device

    def send(
        self, name: str, path: dict[str, object] | None, tensor: torch.Tensor, header: Header
    ) -> None:
        """Urgent on the links of `path`; None: they cost nothing. Raises PeerLost."""
        payload = bytes_of(tensor)
        if path is not None:
            self._links.carry(as_path(path), len(payload), urgent=True)
        self._mesh.send(name, header, payload)

    def is_lost(self, name: str) -> bool:
        return self._mesh.is_lost(name)

    def tensor(self, payload: bytes, shape: list[int]) -> torch.Tensor:
        flat = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        return flat.view(self._dtype).view(shape).to(self._device)


def bytes_of(tensor: torch.Tensor) -> bytes:
    content: bytes = tensor.contiguous().cpu().view(torch.uint8).numpy().tobytes()
    return content


def as_path(path: dict[str, object]) -> LinkPath:
    links, rate, latency_s = path["links"], path["bytes_per_s"], path["latency_s"]
    assert isinstance(links, (list, tuple))
    assert rate is None or isinstance(rate, float)
    assert isinstance(latency_s, float)
    return LinkPath(tuple(links), rate, latency_s)
