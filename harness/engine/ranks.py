"""The ranks of one instance, a worker process each: they compute the same steps together.

Every rank is told the same commands. They meet in torch.distributed: twice in a layer, to sum what
o and down give; then for rank 0's tokens; and for whether to go on, which rank 0 alone knows: its
clock and its stops count.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
import torch.distributed as dist

from harness.engine.cuda import on_gpu
from harness.engine.host import LOOPBACK
from harness.engine.kernels import Linear
from harness.engine.linear import Layer
from harness.engine.mlp import Mlp
from harness.engine.runner import Runner


def join(rank: int, num_ranks: int, file: int, device: torch.device) -> None:
    """Waits until all ranks are there: NCCL's on GPUs, else gloo's. `file`: that they all have
    open, empty before the first one came; they find one another through it."""
    for name, value in LOOPBACK.items():
        os.environ.setdefault(name, value)
    dist.init_process_group(
        "nccl" if on_gpu(device) else "gloo", f"file:///proc/self/fd/{file}", rank=rank,
        world_size=num_ranks,
    )  # fmt: skip
    dist.all_reduce(torch.zeros(1, device=device))  # connected now, not in the first step


class SummedLinear:
    """Answers `Linear`, without a bias: `part` has some of the columns of W, the ranks together
    all of them."""

    def __init__(self, part: Linear) -> None:
        self._part = part

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = self._part(x)
        dist.all_reduce(out)
        return out

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self(x).add_(residual)


def sum_products(layers: Iterable[Layer]) -> None:
    """Has `layers` sum their products over the ranks, which all compute at a time then."""
    for layer in layers:
        layer.o, layer.mlp = SummedLinear(layer.o), _summed(layer.mlp)


def _summed(part: Mlp) -> Mlp:
    """The sum of an MLP that has no bias behind it."""

    def mlp(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        out = part(x, torch.zeros_like(residual))
        dist.all_reduce(out)
        return out.add_(residual)

    return mlp


class RankRunner(Runner):
    """Runs a rank's part. Its spec, decoder, layers and cache are of the rank."""

    def picked(self, hidden: torch.Tensor, sampled: torch.Tensor | None) -> torch.Tensor:
        """Rank 0's: a difference in a last digit must not part the ranks."""
        tokens = super().picked(hidden, sampled)
        dist.broadcast(tokens, 0)
        return tokens

    def agreed(self, ends: bool) -> bool:
        answer = torch.tensor([int(ends)], device=self.device)
        dist.broadcast(answer, 0)
        return bool(answer)
