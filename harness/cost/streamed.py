"""Iterations of an instance some of whose layers come from host memory each time (FlexGen's way;
KunServe Fig. 4's parameter swap).

Layers are prefetched while those before them are computed, through a buffer of two, so an iteration
takes its compute or the copies, whichever is longer.
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.cost.model import CostModel
from harness.errors import UsageError

BUFFERED_LAYERS = 2  # one is computed while the next one comes


class StreamedCost(CostModel):
    """`whole`: with all layers there. `stream_s`: of one iteration's copies."""

    def __init__(self, whole: CostModel, stream_s: float) -> None:
        self.source, self.turnaround_s, self.path_s = whole.source, whole.turnaround_s, whole.path_s
        self._whole, self._stream_s = whole, stream_s

    def decode_step(self, num_requests: int, context_tokens: int) -> tuple[float, float]:
        """While copies take longer a step does not grow; a run in which it comes to must be cut
        into short ones."""
        step_s, growth_s = self._whole.decode_step(num_requests, context_tokens)
        return (step_s, growth_s) if step_s >= self._stream_s else (self._stream_s, 0.0)

    def mixed_step(
        self, chunks: Iterable[tuple[int, int]], num_decodes: int, context_tokens: int
    ) -> float:
        return max(self._stream_s, self._whole.mixed_step(chunks, num_decodes, context_tokens))


def streamed_layers(gained_bytes: int, layer_bytes: int, num_layers: int) -> int:
    """How many layers must pass through the buffer so that `gained_bytes` of device memory are
    free of weights. Raises UsageError where even all of them are too few."""
    layers = -(-gained_bytes // layer_bytes) + BUFFERED_LAYERS
    if layers > num_layers:
        most = (num_layers - BUFFERED_LAYERS) * layer_bytes
        raise UsageError(
            f"{gained_bytes} bytes are more than streaming the model's {num_layers} layers frees: "
            f"{most}"
        )
    return layers
