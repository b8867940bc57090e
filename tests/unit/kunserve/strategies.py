"""Models and clusters for the property tests of KunServe's decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from harness.model_spec import ModelSpec
from systems.kunserve.group import Group, alone, members
from systems.kunserve.merge import merge
from tests.running import model_spec

QWEN_14B = model_spec("qwen2.5-14b")


def model_of(num_layers: int, *, tied: bool = False) -> ModelSpec:
    """Qwen-2.5-14B with another number of layers."""
    return replace(QWEN_14B, num_layers=num_layers, tie_embeddings=tied)


def singles(count: int, num_layers: int) -> list[Group]:
    return [alone(f"i{index}", num_layers) for index in range(count)]


def grouped(sizes: list[int], num_layers: int) -> list[Group]:
    """Instances i0, i1, … in groups of these sizes."""
    left, found = singles(sum(sizes), num_layers), []
    for size in sizes:
        group = merge(left[:size])
        assert group is not None
        found.append(group)
        left = left[size:]
    return found


def check(groups: Sequence[Group], num_layers: int) -> None:
    """Every group holds each layer once, in order (§4.1, constraint b), and every member some;
    every instance is in one group."""
    for group in groups:
        held = [layer for stage in group for layer in stage.layers]
        assert held == list(range(num_layers)), held
        assert all(stage.layers for stage in group)
    names = [name for group in groups for name in members(group)]
    assert len(set(names)) == len(names)


clusters = st.tuples(
    st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(4, 50), st.booleans()
)  # sizes of the groups that exist, layers, whether the embedding is tied
