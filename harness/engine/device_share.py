"""How much device memory an instance gets, where the harness decides it before workers start."""

from __future__ import annotations

import os
from importlib.metadata import version

from harness.records import gpu_monitor


def gpu_share_bytes(device: str, num_workers: int) -> int | None:
    """One instance's equal part of a GPU: of the smallest one, where they differ. None: workers run
    on the CPU. `device`: engine.device."""
    sizes = [] if device == "cpu" else [int(gpu["memory_bytes"]) for gpu in gpu_monitor.devices()]
    num_gpus = 0 if version("torch").endswith("+cpu") else num_visible(len(sizes))
    if not num_gpus:
        return None
    return min(sizes) // -(-num_workers // num_gpus)


def num_visible(num_gpus: int) -> int:
    """How many of the machine's GPUs workers see, by CUDA_VISIBLE_DEVICES. The harness's own
    process never opens a GPU, so it asks NVML, which does not read that variable."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return num_gpus
    return min(num_gpus, len([name for name in visible.split(",") if name.strip()]))
