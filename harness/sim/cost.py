"""How long an iteration takes: a roofline over model dimensions and hardware constants.

Decode, with B requests whose contexts sum to S tokens:   t = a(B) + c·S
  a(B) = step overhead + max(weights / bandwidth, linear FLOPs of B tokens / compute)
  c    = KV bytes of one token / bandwidth
a(B) is constant while the batch is, and S grows by B each step, so n steps have a closed form.
Prefill adds the chunk's linear FLOPs to the maximum and its attention's FLOPs and KV reads.
Knows no request but the counts of one; calibration replaces the constants, not the form.
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.cluster import ModelSpec
from harness.hardware import Hardware


class CostModel:
    """Step times in seconds for `model` on `hardware`, its work split evenly over model.tp."""

    def __init__(self, model: ModelSpec, hardware: Hardware) -> None:
        bandwidth = hardware.memory_bandwidth_bytes_per_s * hardware.memory_efficiency
        compute = hardware.dense_flop_per_s * hardware.compute_efficiency
        read_s, flop_s = 1 / (bandwidth * model.tp), 1 / (compute * model.tp)
        head_params = model.vocab_size * model.hidden_size
        linear_params = model.num_layers * model.layer_params
        self.overhead_s = hardware.step_overhead_s
        self.weights_s = (linear_params + head_params) * model.dtype_bytes * read_s
        self.token_s = 2 * linear_params * flop_s  # one token through every layer
        self.sample_s = 2 * head_params * flop_s  # one row through the output head
        self.context_s = model.kv_bytes_per_token * read_s  # one context token attended by a decode
        self.attend_s = 4 * model.num_layers * model.num_heads * model.head_dim * flop_s
        self.layer_load_s = model.layer_bytes / (hardware.host_link_bytes_per_s * model.tp)

    def decode_step(self, num_requests: int, context_tokens: int) -> tuple[float, float]:
        """(time of the next step, growth of the time from one step to the next).

        `context_tokens` sums, over the batch, the tokens that the next step attends to.
        """
        linear_s = max(self.weights_s, num_requests * (self.token_s + self.sample_s))
        step_s = self.overhead_s + linear_s + self.context_s * context_tokens
        return step_s, self.context_s * num_requests

    def mixed_step(
        self, chunks: Iterable[tuple[int, int]], num_decodes: int, context_tokens: int
    ) -> float:
        """Time of one iteration with prefill chunks, each as (tokens computed before, tokens)."""
        tokens, attended, read = num_decodes, 0.0, float(context_tokens)
        num_chunks = 0
        for before, n in chunks:
            num_chunks += 1
            tokens += n
            attended += n * before + n * (n + 1) / 2
            read += before + n
        compute_s = tokens * self.token_s + (num_chunks + num_decodes) * self.sample_s
        linear_s = max(self.weights_s, compute_s)
        return self.overhead_s + linear_s + self.attend_s * attended + self.context_s * read


def steps_time_s(steps: int, step_s: float, growth_s: float) -> float:
    """Time of `steps` decode steps, the first taking `step_s`, each next `growth_s` more."""
    return steps * step_s + growth_s * steps * (steps - 1) / 2


def steps_to_reach(elapsed_s: float, step_s: float, growth_s: float) -> int:
    """The least n ≥ 1 with steps_time_s(n) ≥ elapsed_s: the boundary where an interruption lands.

    The positive root of the quadratic, then moved by at most a step against rounding.
    """
    if elapsed_s <= step_s:
        return 1
    linear = step_s - growth_s / 2
    root = 2 * elapsed_s / (linear + (linear * linear + 2 * growth_s * elapsed_s) ** 0.5)
    n = max(1, int(root))
    while n > 1 and steps_time_s(n - 1, step_s, growth_s) >= elapsed_s:
        n -= 1
    while steps_time_s(n, step_s, growth_s) < elapsed_s:
        n += 1
    return n
