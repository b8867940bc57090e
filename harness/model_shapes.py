"""The tensors of a model and their shapes: what is in memory, in files and in a checkpoint."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import TYPE_CHECKING

from harness.model_family import Parts, family_of

if TYPE_CHECKING:
    from harness.model_spec import ModelSpec

Shapes = dict[str, tuple[int, ...]]

POSITION_OFFSET = 2  # a table of learned positions has position 0 in this row (OPT)


def layer_parts(spec: ModelSpec) -> Parts:
    """Our names of a layer's tensors, and Hugging Face's of their parts below the layer's own."""
    experts = range(spec.num_experts or 1)
    found = {
        name: tuple(part.format(expert) for expert in experts for part in parts)
        if "{}" in parts[0]
        else parts
        for name, parts in family_of(spec.family).layer.items()
    }
    if not spec.qkv_bias:
        found.pop("qkv_bias", None)
    if spec.mlp_matrices == 2 and "gate_up" in found:
        found["gate_up"] = found["gate_up"][1:]
    return found


def end_parts(spec: ModelSpec, *, first: bool = True, last: bool = True) -> Parts:
    """The same of what stands before the first layer and behind the last one, where a device has
    that layer. Tied embeddings are there once where both are."""
    family = family_of(spec.family)
    found = {**(family.first if first else {}), **(family.last if last else {})}
    if first and last and spec.tie_embeddings:
        del found["lm_head"]
    return found


def shapes(spec: ModelSpec, named: Parts) -> Shapes:
    """Of our tensors, whose parts lie one behind the other in their first dimension."""
    found = {}
    for name, parts in named.items():
        each = [part_shape(spec, part) for part in parts]
        found[name] = (sum(shape[0] for shape in each), *each[0][1:])
    return found


def part_shape(spec: ModelSpec, part: str) -> tuple[int, ...]:
    """The shape of a Hugging Face tensor, from the end of its name."""
    heads, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    hidden, wide, table = spec.hidden_size, spec.intermediate_size, spec.vocab_size
    known: Shapes = {
        "q_proj.weight": (heads, hidden), "q_proj.bias": (heads,),
        "k_proj.weight": (kv, hidden), "k_proj.bias": (kv,),
        "v_proj.weight": (kv, hidden), "v_proj.bias": (kv,),
        "q_norm.weight": (spec.head_dim,), "k_norm.weight": (spec.head_dim,),
        "o_proj.weight": (hidden, heads), "out_proj.weight": (hidden, heads),
        "gate.weight": (spec.num_experts or 0, hidden), "fc1.bias": (wide,),
        "gate_proj.weight": (wide, hidden), "up_proj.weight": (wide, hidden),
        "w1.weight": (wide, hidden), "w3.weight": (wide, hidden), "fc1.weight": (wide, hidden),
        "down_proj.weight": (hidden, wide), "w2.weight": (hidden, wide),
        "fc2.weight": (hidden, wide),
        "embed_tokens.weight": (table, hidden), "lm_head.weight": (table, hidden),
        "embed_positions.weight": (spec.max_position + POSITION_OFFSET, hidden),
    }  # fmt: skip
    return known.get(".".join(part.split(".")[-2:]), (hidden,))


@cache
def layer_shapes(spec: ModelSpec) -> Shapes:
    return shapes(spec, layer_parts(spec))


@cache
def end_shapes(spec: ModelSpec, *, first: bool = True, last: bool = True) -> Shapes:
    return shapes(spec, end_parts(spec, first=first, last=last))


def num_params(of: Shapes) -> int:
    return sum(map(prod, of.values()))
