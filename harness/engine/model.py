"""The decoder: Llama, Mistral and Qwen2 in one, as functions of explicit weights.

RMSNorm, rotary positions, grouped-query attention, SwiGLU, optional q/k/v biases; any layer
range [lo, hi). The operations follow Hugging Face's order where rounding could tell, so that
greedy tokens agree. Knows nothing of batches: a `Step` says where tokens stand and attend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import embedding, rms_norm, silu

from harness.engine.linear import Ends, Layer
from harness.engine.weights import torch_dtype
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

    def __init__(self, spec: ModelSpec, ends: Ends, device: torch.device) -> None:
        self._spec, self._ends = spec, ends
        self._cos, self._sin = rotary_tables(spec, device)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return embedding(ids, self._ends.embed)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._ends.lm_head(self._norm(hidden, self._ends.norm))

    def layers(
        self, hidden: torch.Tensor, layers: Sequence[tuple[int, Layer]], step: Step
    ) -> torch.Tensor:
        """`hidden` [tokens, hidden_size] through consecutive (index, layer) pairs."""
        cos = self._cos.index_select(0, step.positions)[:, None]
        sin = self._sin.index_select(0, step.positions)[:, None]
        for index, layer in layers:
            qkv = layer.qkv(self._norm(hidden, layer.input_norm))
            attended = self._attention(qkv, (cos, sin), step, index)
            hidden = layer.o.plus(attended, hidden)
            gate, up = layer.gate_up(self._norm(hidden, layer.post_norm)).chunk(2, -1)
            hidden = layer.down.plus(silu(gate).mul_(up), hidden)
        return hidden

    def _attention(
        self, qkv: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], step: Step, layer: int
    ) -> torch.Tensor:
        spec = self._spec
        heads, kv_heads = spec.num_heads, spec.num_kv_heads
        qkv = qkv.view(len(qkv), heads + 2 * kv_heads, spec.head_dim)
        rotated = rotate(qkv[:, : heads + kv_heads], *rotary)
        q, k, v = rotated[:, :heads], rotated[:, heads:], qkv[:, heads + kv_heads :]
        end = len(qkv) - step.num_padding_rows
        out = step.attend(layer, q[:end], k[:end], v[:end])
        if step.num_padding_rows:
            out = torch.cat((out, q[end:]))
        return out.reshape(len(qkv), heads * spec.head_dim)

    def _norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden, weight.shape, weight, self._spec.rms_norm_eps)


def rotary_tables(spec: ModelSpec, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [max_position, head_dim]; the first half of sin negated, see `rotate`."""
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.int64).float() / spec.head_dim
    frequencies = 1.0 / (spec.rope_theta**exponents)
    angles = torch.outer(torch.arange(spec.max_position).float(), frequencies)
    cos, sin = angles.cos(), angles.sin()
    dtype = torch_dtype(spec)
    return (
        torch.cat((cos, cos), -1).to(device, dtype),
        torch.cat((-sin, sin), -1).to(device, dtype),
    )


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions (RoFormer, Hugging Face's half-split layout): the halves of a head are
    swapped and the sign of the rotation sits in `sin`."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
