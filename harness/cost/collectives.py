"""How long collectives inside a node take, by NCCL's measured bus bandwidths, and what they move.

Copies between places, and what they wait for each other, are the network's business.
"""

from __future__ import annotations

from harness.cost.hardware import Hardware

# NCCL 2.27 all-reduce of 512 MB: 193–222 GB/s of 300 on A100, 320–445 of 450 on H100 (2–8 GPUs).
ALL_REDUCE_EFFICIENCY = 0.72
# Its latency at 2, 4, 8 GPUs: 10, 14, 21 µs on A100; 6, 9, 15 µs on H100.
ALL_REDUCE_LATENCY_GROWTH = 0.25  # of the two-GPU latency, per GPU beyond two


def peer_bytes_per_s(hardware: Hardware) -> float:
    """One direction between two devices of a node: NVLink, or PCIe where there is none."""
    return hardware.nvlink_bytes_per_s or hardware.pcie_bytes_per_s


def all_reduce_s(num_bytes: float, num_devices: int, hardware: Hardware) -> tuple[float, float]:
    """(latency, transfer time) of a ring all-reduce of `num_bytes` over devices of one node."""
    if num_devices == 1:
        return 0.0, 0.0
    latency_s = hardware.nvlink_latency_s * (1 + ALL_REDUCE_LATENCY_GROWTH * (num_devices - 2))
    moved = 2 * (num_devices - 1) / num_devices * num_bytes
    return latency_s, moved / (peer_bytes_per_s(hardware) * ALL_REDUCE_EFFICIENCY)
