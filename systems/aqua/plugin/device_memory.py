"""A producer's region on a GPU: shared by a CUDA IPC handle, so that copies to it are peer copies
(over NVLink where the GPUs have it).

A handle travels as text. It names the GPU by its UUID, since processes that see different GPUs
count them differently. None of this has run on a GPU.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

cuda: Any = torch.cuda
Storage: Any = torch.UntypedStorage


def free_bytes() -> int:
    """Free memory of this process's GPU."""
    free, _ = cuda.mem_get_info()
    return int(free)


def share(num_bytes: int) -> tuple[Tensor, str]:
    """Takes memory of this process's GPU; returns (its bytes, their handle). Raises OSError if it
    has not enough. The handle is good as long as the bytes are kept."""
    try:
        memory = torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
    except RuntimeError as error:
        raise OSError(f"no {num_bytes} bytes on the GPU: {error}") from error
    storage: Any = memory.untyped_storage()
    device, *parts = storage._share_cuda_()
    words = [part.hex() if isinstance(part, bytes) else part for part in parts]
    return memory, json.dumps([_uuid(device), *words])


def opened(handle: str) -> Tensor:
    """The bytes of another process's handle. The memory is mapped until the tensor is dropped.

    Raises OSError if this process does not see that GPU, or if the memory is gone.
    """
    uuid, *words = json.loads(handle)
    seen = [_uuid(i) for i in range(cuda.device_count())]
    if uuid not in seen:
        raise OSError(
            f"GPU {uuid} of the lease is not visible; CUDA_VISIBLE_DEVICES shows "
            f"{', '.join(seen) or 'none'}"
        )
    parts = [bytes.fromhex(word) if isinstance(word, str) else word for word in words]
    device = torch.device("cuda", seen.index(uuid))
    try:
        cuda.init()
        storage = Storage._new_shared_cuda(device.index, *parts)
    except RuntimeError as error:
        raise OSError(f"the lease's handle cannot be opened: {error}") from error
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


def _uuid(index: int) -> str:
    return str(cuda.get_device_properties(index).uuid)
