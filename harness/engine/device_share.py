"""How much device memory an instance gets, where the harness decides it before workers start."""

from __future__ import annotations

import os
from importlib.metadata import version

from harness.records import gpu_monitor


def gpu_share_bytes(device: str, num_workers: int) -> int | None:
    """One instance's equal part of a GPU: of the smallest one, where they differ. None: workers run
    on the CPU. `device`: engine.device."""
    gpus = num_gpus(device)
    if not gpus:
        return None
    sizes = [int(gpu["memory_bytes"]) for gpu in gpu_monitor.devices()]
    return min(sizes) // -(-num_workers // gpus)


def num_gpus(device: str) -> int:
    """How many of the machine's GPUs workers see, by CUDA_VISIBLE_DEVICES; 0: they run on the CPU.
    The harness's own process never opens a GPU, so it asks NVML, which does not read that
    variable."""
    if device == "cpu" or version("torch").endswith("+cpu"):
        return 0
    found, visible = len(gpu_monitor.devices()), os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return found
    return min(found, len([name for name in visible.split(",") if name.strip()]))
