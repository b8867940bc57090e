"""Models and clusters for the property tests of KunServe's decisions."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from harness.model_spec import ModelSpec
from systems.kunserve.group import Group, alone
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


clusters = st.tuples(
    st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(4, 50), st.booleans()
)  # sizes of the groups that exist, layers, whether the embedding is tied
