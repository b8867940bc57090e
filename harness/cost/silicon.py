"""What a device does of an iteration, whatever engine drives it: products, attention, KV.

Products read the weights once and multiply every token by them; the slower of the two would set
the pace of perfect kernels, and the share of that pace that kernels reach depends on the tokens: it
is least where neither reading nor multiplying is idle. Attention multiplies too, but a chunk of few
queries takes as long as one of `fewest_queries`, which fill the device. What was learned of a
device is its `Silicon`; a model's `Work` on it gives `Kernels`. Engines add to that in
`harness.cost.served`. Every function takes numbers or arrays of them, one entry per iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from harness.cost.collectives import all_reduce_s
from harness.cost.hardware import Hardware, Silicon
from harness.cost.law import Part, scaled
from harness.model_spec import ModelSpec

Floats = npt.NDArray[np.float64]
Value: TypeAlias = "float | Floats"


@dataclass(frozen=True, slots=True)
class Work:
    """What a model asks of its devices, in seconds at their datasheets' peaks."""

    layers: Value
    kv_layers: Value
    read_s: Value  # the layers' weights once
    token_s: Value  # multiplying one token by them
    head_read_s: Value  # the same of the vocabulary's product
    head_token_s: Value
    attend_s: Value  # one query and one key, in every layer
    kv_read_s: Value  # one token of context
    reduce_s: Value  # all-reduces: of any size
    reduce_token_s: Value  # and of each token

    def on(self, silicon: Silicon, all_reduce_factor: float) -> Kernels:
        """The terms of kernels as efficient as `silicon` says. all_reduce_factor: the engine's,
        over what `harness.cost.collectives` says."""
        return Kernels(
            read_s=self.read_s,
            token_s=self.token_s,
            head_read_s=self.head_read_s,
            head_token_s=self.head_token_s,
            efficiency_tokens=np.log(silicon.products_tokens),
            efficiency=np.log(silicon.products_efficiency),
            fixed_s=self.layers * silicon.layer_s + self.reduce_s * all_reduce_factor,
            attend_s=self.attend_s / silicon.attention_efficiency,
            fewest_queries=silicon.fewest_queries,
            context_s=self.kv_read_s / silicon.kv_efficiency,
            mixed_context_s=self.kv_read_s / silicon.mixed_kv_efficiency,
            sequence_s=self.kv_layers * silicon.sequence_layer_s,
            sampled_s=silicon.sequence_s,
            reduce_token_s=self.reduce_token_s * all_reduce_factor,
        )


def work(model: ModelSpec, hardware: Hardware, num_layers: int | None = None) -> Work:
    """The work of `model` over model.tp devices; num_layers: the layers of a pipeline stage."""
    tp, layers = model.tp, model.num_layers if num_layers is None else num_layers
    share = layers / model.num_layers
    read_s = 1 / (hardware.memory_bandwidth_bytes_per_s * tp)  # one byte
    flop_s = 1 / (hardware.dense_flop_per_s * tp)
    params, head = layers * model.layer_params, model.vocab_size * model.hidden_size
    latency_s, per_token_s = all_reduce_s(model.activation_bytes_per_token, tp, hardware)
    return Work(
        layers=layers,
        kv_layers=model.kv_layers * share,
        read_s=params * model.dtype_bytes * read_s,
        token_s=2 * params * flop_s,
        head_read_s=head * model.dtype_bytes * read_s,
        head_token_s=2 * head * flop_s,
        attend_s=4 * model.kv_layers * share * model.num_heads * model.head_dim * flop_s,
        kv_read_s=model.held_kv_bytes_per_token * share * read_s,
        reduce_s=2 * layers * latency_s,
        reduce_token_s=2 * layers * per_token_s,
    )


def stacked(works: Sequence[Work]) -> Work:
    """One entry per `works` in each field."""
    names = [field.name for field in fields(Work)]
    return Work(**{name: np.array([getattr(one, name) for one in works]) for name in names})


@dataclass(frozen=True, slots=True)
class Kernels:
    """The terms of an iteration's kernels, in seconds."""

    read_s: Value
    token_s: Value
    head_read_s: Value
    head_token_s: Value
    efficiency_tokens: Floats  # logarithms
    efficiency: Floats  # logarithms
    fixed_s: Value  # small kernels and all-reduces, of any iteration
    attend_s: Value  # one query and one key
    fewest_queries: float
    context_s: Value  # one token of context read by a decode
    mixed_context_s: Value  # the same beside prompts
    sequence_s: Value  # each running request
    sampled_s: Value  # each sampled sequence
    reduce_token_s: Value  # the all-reduces of one token

    def products_s(self, tokens: Value) -> Value:
        """The time of the layers' products with `tokens`, and their all-reduces."""
        product_s = self._roofline_s(tokens, self.read_s, self.token_s)
        return product_s + self.reduce_token_s * tokens

    def head_s(self, sequences: Value) -> Value:
        """The time of the product with the vocabulary, and sampling."""
        product_s = self._roofline_s(sequences, self.head_read_s, self.head_token_s)
        return product_s + self.sampled_s * sequences

    def iteration_s(self, tokens: Value, sequences: Value) -> Value:
        """The time of everything but attention's reading and multiplying."""
        work_s = self.products_s(tokens) + self.head_s(sequences)
        return work_s + self.fixed_s + self.sequence_s * sequences

    def pairs(self, before: Value, tokens: Value) -> Value:
        """Queries and keys of a chunk, as many as it takes the time of."""
        return np.maximum(tokens, self.fewest_queries) * before + tokens * (tokens + 1) / 2

    def _roofline_s(self, tokens: Value, read_s: Value, token_s: Value) -> Value:
        share = np.exp(np.interp(np.log(tokens), self.efficiency_tokens, self.efficiency))
        found: Value = np.maximum(read_s, token_s * tokens) / share
        return found

    def on_a_share(self, part: Part) -> Kernels:
        """These terms on a share of the device, as `harness.cost.law.on_a_share`."""
        compute, memory = part.slowdowns()
        reads = ("read_s", "head_read_s", "context_s", "mixed_context_s")
        kernels = ("fixed_s", "sequence_s", "sampled_s")
        slower = scaled(self, memory, reads + kernels)
        return scaled(slower, compute, ("token_s", "head_token_s", "attend_s"))
