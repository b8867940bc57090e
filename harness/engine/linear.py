"""A layer's weights where they run: plain tensors on a GPU, packed for the matmul on a CPU.

Knows nothing of what a layer computes; `model.py` does.
"""

from __future__ import annotations

import torch
from torch.nn.functional import linear

from harness.engine.weights import Weights


class Linear:
    """y = x Wᵀ, plus a bias or a residual.

    On a CPU, float32 weights are packed for oneDNN, as torch's own compiler does: measured with
    64 rows on an AVX-512 AMD, that is 2.5 to 4 times as fast as the MKL product behind `linear`,
    and it equals it up to the order of the sums. Half precision goes to oneDNN anyway.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, device: torch.device):
        self._bias = None if bias is None else bias.to(device)
        self._packed = device.type == "cpu" and weight.dtype == torch.float32
        if self._packed:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight)
        else:
            self._weight = weight.to(device, copy=True)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not self._packed:
            return linear(x, self._weight, self._bias)
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._weight, self._bias, "none", [], ""
        )
        return out

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """residual + x Wᵀ, in one kernel."""
        if not self._packed:
            return torch.addmm(residual, x, self._weight.t())
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, residual, self._weight, self._bias, "add"
        )
        return out


class Layer:
    """One decoder layer on its device."""

    def __init__(self, host: Weights, device: torch.device) -> None:
        self.input_norm = host["input_norm"].to(device)
        self.qkv = Linear(host["qkv"], host.get("qkv_bias"), device)
        self.o = Linear(host["o"], None, device)
        self.post_norm = host["post_norm"].to(device)
        self.gate_up = Linear(host["gate_up"], None, device)
        self.down = Linear(host["down"], None, device)


class Ends:
    """What stands before the first layer and after the last one."""

    def __init__(self, host: Weights, device: torch.device) -> None:
        self.embed = host["embed"].to(device)
        self.norm = host["norm"].to(device)
        self.lm_head = Linear(host["lm_head"], None, device)
