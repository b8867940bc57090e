"""The decoder: Llama, Mistral and Qwen2 in one, as functions of explicit weights.

RMSNorm, rotary positions, grouped-query attention, SwiGLU, optional q/k/v biases; any layer
range [lo, hi). The operations follow Hugging Face's order where rounding could tell, so that
greedy tokens agree. Knows nothing of batches: a `Step` says where tokens stand and attend; nor of
how the parts are computed (`kernels.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import embedding, silu

from harness.engine.kernels import Kernels, Rotation
from harness.engine.linear import Ends, Layer
from harness.model_spec import ModelSpec

# (layer, q, k, v) of the step's tokens to what they attend to, [tokens, heads, head_dim] each.
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(slots=True)
class Step:
    """One iteration: chunk tokens first, then one token per decode; all at fixed positions.
    Rows of padding, which nobody reads, may stand behind them."""

    positions: torch.Tensor  # [tokens + num_padding_rows]
    attend: Attend
    num_padding_rows: int


class TransformerDecoder:
    """Layers are passed in by the caller: they come and go."""

    def __init__(self, spec: ModelSpec, ends: Ends, kernels: Kernels) -> None:
        self._spec, self._ends, self.kernels = spec, ends, kernels

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return embedding(ids, self._ends.embed)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._ends.lm_head(self.kernels.norm(hidden, self._ends.norm))

    def layers(
        self, hidden: torch.Tensor, layers: Sequence[tuple[int, Layer]], step: Step
    ) -> torch.Tensor:
        """`hidden` [tokens, hidden_size] through consecutive (index, layer) pairs."""
        rotate = self.kernels.rotation(step.positions)
        for index, layer in layers:
            qkv = layer.qkv(self.kernels.norm(hidden, layer.input_norm))
            attended = self._attention(qkv, rotate, step, index)
            hidden = layer.o.plus(attended, hidden)
            gate, up = layer.gate_up(self.kernels.norm(hidden, layer.post_norm)).chunk(2, -1)
            hidden = layer.down.plus(silu(gate).mul_(up), hidden)
        return hidden

    def _attention(
        self, qkv: torch.Tensor, rotate: Rotation, step: Step, layer: int
    ) -> torch.Tensor:
        spec = self._spec
        heads, kv_heads = spec.num_heads, spec.num_kv_heads
        rows = qkv.shape[0]
        qkv = qkv.view(rows, heads + 2 * kv_heads, spec.head_dim)
        rotated = rotate(qkv[:, : heads + kv_heads])
        q, k, v = rotated[:, :heads], rotated[:, heads:], qkv[:, heads + kv_heads :]
        end = rows - step.num_padding_rows
        out = step.attend(layer, q[:end], k[:end], v[:end])
        if step.num_padding_rows:
            out = torch.cat((out, q[end:]))
        return out.reshape(rows, heads * spec.head_dim)
