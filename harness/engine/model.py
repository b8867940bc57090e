"""The decoder of all families, as functions of explicit weights; any layer range [lo, hi).

What tells families apart is chosen once: the norm, rotary or learned positions, norms of queries
and keys; a layer brings its MLP (`mlp.py`). The operations follow Hugging Face's order where
rounding could tell, so that greedy tokens agree. Knows nothing of batches: a `Step` says where
tokens stand and attend; nor of how the parts are computed (`kernels.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional
from torch.nn.functional import embedding

from harness.engine.kernels import Kernels, Rotation
from harness.engine.linear import Ends, Layer
from harness.model_family import family_of
from harness.model_spec import POSITION_OFFSET, ModelSpec

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
        family = family_of(spec.family)
        learned, normed = family.positions == "learned", "qk_norm" in family.layer
        self._norm = layer_norm(spec.rms_norm_eps) if family.norm == "layer" else kernels.norm
        self.embed = self._tokens_at_positions if learned else self._tokens
        self._rotation = _no_rotation if learned else kernels.rotation
        self._queries_and_keys = self._normed_heads if normed else self._heads

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._ends.lm_head(self._norm(hidden, self._ends.norm))

    def layers(
        self, hidden: torch.Tensor, layers: Sequence[tuple[int, Layer]], step: Step
    ) -> torch.Tensor:
        """`hidden` [tokens, hidden_size] through consecutive (index, layer) pairs."""
        rotate = self._rotation(step.positions)
        for index, layer in layers:
            attended = self._attention(hidden, layer, rotate, step, index)
            hidden = layer.o.plus(attended, hidden)
            hidden = layer.mlp(self._norm(hidden, layer.post_norm), hidden)
        return hidden

    def _attention(
        self, hidden: torch.Tensor, layer: Layer, rotate: Rotation, step: Step, index: int
    ) -> torch.Tensor:
        heads, kv_heads = self._spec.num_heads, self._spec.num_kv_heads
        rows = hidden.shape[0]
        qkv = layer.qkv(self._norm(hidden, layer.input_norm))
        qkv = qkv.view(rows, heads + 2 * kv_heads, self._spec.head_dim)
        rotated = rotate(self._queries_and_keys(qkv, layer))
        q, k, v = rotated[:, :heads], rotated[:, heads:], qkv[:, heads + kv_heads :]
        end = rows - step.num_padding_rows
        out = step.attend(index, q[:end], k[:end], v[:end])
        if step.num_padding_rows:
            out = torch.cat((out, q[end:]))
        return out.reshape(rows, heads * self._spec.head_dim)

    def _heads(self, qkv: torch.Tensor, layer: Layer) -> torch.Tensor:
        return qkv[:, : self._spec.num_heads + self._spec.num_kv_heads]

    def _normed_heads(self, qkv: torch.Tensor, layer: Layer) -> torch.Tensor:
        assert layer.qk_norm is not None
        heads = self._heads(qkv, layer).split((self._spec.num_heads, self._spec.num_kv_heads), 1)
        weights = layer.qk_norm.chunk(2)
        normed = [self._norm(x.contiguous(), w) for x, w in zip(heads, weights, strict=True)]
        return torch.cat(normed, 1)

    def _tokens(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[tokens] each, int64, to [tokens, hidden_size]."""
        return embedding(ids, self._ends.embed)

    def _tokens_at_positions(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        at = embedding(positions + POSITION_OFFSET, self._ends.positions)
        return embedding(ids, self._ends.embed) + at


def layer_norm(epsilon: float) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A norm of hidden states [tokens, size] by weight and bias, one behind the other."""

    def norm(hidden: torch.Tensor, parameters: torch.Tensor) -> torch.Tensor:
        weight, bias = parameters.chunk(2)
        return functional.layer_norm(hidden, weight.shape, weight, bias, epsilon)

    return norm


def _no_rotation(positions: torch.Tensor) -> Rotation:
    return lambda heads: heads
