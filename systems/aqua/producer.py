"""Image and audio models that have memory to spare while they run at full throughput.

AQUA (ASPLOS'25) §4, Fig. 3: with the batch, memory grows linearly and throughput saturates; what
is free of the device once it has is what such a model can lend. Two points of each model are
published, its batch at peak throughput and the memory free there (conf/producer/); the line
between the weights alone and that point is ours.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class Producer:
    name: str
    item: str  # what a batch is made of: image or audio
    num_params: int
    dtype_bytes: int
    peak_batch: int  # where the throughput has reached its plateau
    free_bytes_at_peak: int
    device_memory_bytes: int  # of the device that this was seen on
    share_at_peak: float  # of the plateau's throughput that peak_batch has

    def __post_init__(self) -> None:
        if not 0 < self.share_at_peak < 1:
            raise ValueError(f"share_at_peak={self.share_at_peak} must be in (0, 1)")
        if self.weight_bytes + self.free_bytes_at_peak >= self.device_memory_bytes:
            raise ValueError(f"{self.name}: weights and free memory exceed the device's")

    @property
    def weight_bytes(self) -> int:
        return self.num_params * self.dtype_bytes

    def memory_bytes(self, batch: int) -> float:
        """What the model holds while it works on `batch` items."""
        at_peak = self.device_memory_bytes - self.free_bytes_at_peak
        return self.weight_bytes + (at_peak - self.weight_bytes) * batch / self.peak_batch

    def throughput_share(self, batch: int) -> float:
        """Items/s as a share of the plateau's, for a batch that takes a constant time and a time
        per item: batch / (batch + b), where peak_batch has share_at_peak."""
        half = self.peak_batch * (1 - self.share_at_peak) / self.share_at_peak
        return batch / (batch + half)
