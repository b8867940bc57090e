"""All that the engine asks of CUDA: which GPU, its streams, its copies, memory that it reaches.

On a CPU each of these is nothing: copies are over when they return, and memory needs no lock. The
rest of the engine never asks which of the two it runs on, but for kernels that exist on one alone.
A test drives every function here with a recorded stand-in for `torch.cuda`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def on_gpu(device: torch.device) -> bool:
    return device.type == "cuda"


def pick_device(device: str, index: int) -> torch.device:
    """The device of worker `index`: workers take the visible GPUs in turn. RuntimeError where a GPU
    is wanted and there is none."""
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError("engine.device=cuda, but torch finds no CUDA device here")
    return torch.device("cuda", index % torch.cuda.device_count())


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if on_gpu(device) else "cpu"


def stream_of_its_own(device: torch.device) -> AbstractContextManager[object]:
    """What the calling thread starts within it runs beside what other threads start."""
    if not on_gpu(device):
        return nullcontext()
    torch.cuda.set_device(device)
    return torch.cuda.stream(torch.cuda.Stream(device))


def finish(device: torch.device) -> None:
    """Waits for what the calling thread has started. Who is told that bytes are there, and reads
    them in another stream, must be told after this."""
    if on_gpu(device):
        torch.cuda.current_stream(device).synchronize()


def finish_all(device: torch.device) -> None:
    """Waits for what all threads have started."""
    if on_gpu(device):
        torch.cuda.synchronize(device)


def staging(num_bytes: int, device: torch.device) -> torch.Tensor:
    """New host memory [num_bytes], uint8, that `device` copies from at the bus's full speed."""
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=on_gpu(device))


def staged(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor` itself on a CPU, else a page-locked copy of it."""
    return tensor.pin_memory() if on_gpu(device) else tensor


def lock_pages(host: torch.Tensor, device: torch.device) -> None:
    """Page-locks `host`, bytes of a mapped file, where they are. RuntimeError where CUDA refuses,
    for instance beyond the limit of locked memory."""
    if not on_gpu(device):
        return
    error = int(torch.cuda.cudart().cudaHostRegister(host.data_ptr(), len(host), 0))
    if error:
        raise RuntimeError(f"cannot page-lock {len(host)} bytes: CUDA error {error}")


def release_cached(device: torch.device) -> None:
    """Gives back what torch keeps of freed tensors."""
    if on_gpu(device):
        torch.cuda.empty_cache()


def bytes_left(device: torch.device, fraction: float, num_workers: int) -> int | None:
    """This worker's part of `fraction` of a GPU's memory, where `num_workers` share the visible
    GPUs, less what it has allocated there. None: no GPU."""
    if not on_gpu(device):
        return None
    sharing = -(-num_workers // torch.cuda.device_count())
    total = torch.cuda.get_device_properties(device).total_memory
    return int(total * fraction / sharing) - torch.cuda.memory_allocated(device)
