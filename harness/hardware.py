"""A hardware profile: the constants of `conf/hardware/<name>.yaml`, each with its source there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class Hardware:
    """`num_devices` equal devices (GPUs, or CPU slots on a machine without one)."""

    name: str
    device: str  # what one device is, e.g. "A100-SXM4-80GB"
    num_devices: int
    memory_bytes: int  # per device
    memory_bandwidth_bytes_per_s: float
    dense_flop_per_s: float  # at the model's dtype, without sparsity
    memory_efficiency: float  # achieved share of the two peaks, 0..1
    compute_efficiency: float
    step_overhead_s: float  # per iteration: launches, sampling, Python
    host_link_bytes_per_s: float  # host memory to one device
    source: str
