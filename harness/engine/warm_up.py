"""What a worker does before its first request: every product of usual size, once.

oneDNN generates code for each number of rows that a product meets, about 2 ms on one core here:
cold, the first five seconds of a run took 10 to 35 % longer than such work did later. A server that
is ready has this behind it (vLLM warms up too), so that no request pays for it. Instances that
models take turns on do without: a restart (Aegaeon's T0) would pay for it every time.
"""

from __future__ import annotations

from time import perf_counter

import torch

from harness.engine.linear import Ends, Layer
from harness.engine.padding import padding_rows
from harness.engine.weights import torch_dtype
from harness.model_spec import ModelSpec

MAX_REQUESTS = 256  # in a batch, vLLM's default: larger ones pay when they come
ENOUGH_S = 10.0  # a large model on a CPU: the smallest numbers of rows, which gain most


def warm_up(
    spec: ModelSpec, layer: Layer, ends: Ends, device: torch.device, max_tokens: int
) -> None:
    """Runs the products of one layer, and the last one, on zeros, for batches of up to
    `max_tokens`: all layers have one shape. On a GPU nothing: what a first iteration costs there
    has not been measured."""
    if device.type != "cpu":
        return
    sizes = spec.hidden_size, spec.num_heads * spec.head_dim
    until_s = perf_counter() + ENOUGH_S
    with torch.inference_mode():
        for rows in (n for n in range(1, max_tokens + 1) if not padding_rows(n)):
            hidden, attended = (
                torch.zeros((rows, size), dtype=torch_dtype(spec), device=device) for size in sizes
            )
            layer.qkv(hidden)
            layer.o.plus(attended, hidden)
            layer.mlp(hidden, hidden)
            if rows <= MAX_REQUESTS:
                ends.lm_head(hidden)
            if perf_counter() > until_s:
                return
