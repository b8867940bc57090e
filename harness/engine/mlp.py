"""The MLPs of a layer, by `Family.mlp`. On a device's weights they become functions of x, the
normed hidden states, and the residual, [rows, hidden_size] each, to residual + MLP(x)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn.functional import relu_, silu

from harness.engine.kernels import Linear, MakeLinear
from harness.engine.padding import padded
from harness.engine.weights import Weights
from harness.model_spec import ModelSpec

Mlp = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def gated(spec: ModelSpec, weights: Weights, linear: MakeLinear) -> Mlp:
    """SwiGLU."""
    gate_up, down = linear(weights["gate_up"], None), linear(weights["down"], None)
    return lambda x, residual: down.plus(_activated(gate_up, x), residual)


def _activated(gate_up: Linear, x: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up(x).chunk(2, -1)
    return silu(gate).mul_(up)


def rectified(spec: ModelSpec, weights: Weights, linear: MakeLinear) -> Mlp:
    """Two products with biases, ReLU between them."""
    up, down = (linear(weights[name], weights[f"{name}_bias"]) for name in ("up", "down"))
    return lambda x, residual: down.plus(relu_(up(x)), residual)


def experts(spec: ModelSpec, weights: Weights, linear: MakeLinear) -> Mlp:
    """SwiGLUs of which each row goes to a few, in the shares of their router (softmax in float32)
    to each other. Tells the host how many rows each expert has, once a layer."""
    assert spec.num_experts is not None
    assert spec.num_experts_per_token is not None
    router, used = linear(weights["router"], None), spec.num_experts_per_token
    both = [weights[name].chunk(spec.num_experts) for name in ("gate_up", "down")]
    each = [
        (linear(gate_up, None), linear(down, None)) for gate_up, down in zip(*both, strict=True)
    ]

    def mlp(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        shares, chosen = router(x).float().softmax(-1).topk(used, -1)
        shares = (shares / shares.sum(-1, keepdim=True)).flatten()
        order = chosen.flatten().argsort(stable=True)  # by expert, then by row
        counts = chosen.flatten().bincount(minlength=len(each)).tolist()
        out = torch.zeros_like(x)
        for (up, down), mine in zip(each, order.split(counts), strict=True):
            if len(mine):
                rows = mine // used
                y = down(_activated(up, padded(x[rows])))[: len(mine)]
                out.index_add_(0, rows, (y * shares[mine, None]).to(out.dtype))
        return residual + out

    return mlp


MLPS: Mapping[str, Callable[[ModelSpec, Weights, MakeLinear], Mlp]] = {
    "gated": gated,
    "relu": rectified,
    "experts": experts,
}
