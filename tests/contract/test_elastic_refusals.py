"""What elastic instances refuse, each in one sentence that names it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.errors import UsageError
from tests.elastic import DEPTH, hardware, private


@pytest.mark.parametrize(
    ("stages", "says"),
    [
        ([(0, range(1)), (1, range(2, DEPTH))], r"but hold \[0, 1\), \[2, 4\)"),
        ([(0, range(2)), (1, range(1, DEPTH))], r"but hold \[0, 2\), \[1, 4\)"),
        ([(0, range(2)), (1, range(2, 3))], r"layers 0 to 3 in order, but hold \[0, 2\), \[2, 3\)"),
        ([(0, range(2)), (0, range(2, DEPTH))], "one stage of a pipeline only"),
        ([], "needs a stage at least"),
    ],
)
def test_a_route_with_a_gap(stages: list[tuple[int, range]], says: str) -> None:
    with private("sim", 2) as made, pytest.raises(UsageError, match=says):
        made.cluster.pipeline([(made.instances[i], layers) for i, layers in stages])


def test_an_unknown_instance() -> None:
    with private("sim", 1) as made, private("sim", 2) as other:
        stranger = other.instances[1]
        with pytest.raises(UsageError, match=f"{stranger.name} is not of this cluster"):
            made.cluster.pipeline([(stranger, range(DEPTH))])


@pytest.mark.parametrize("layers", [range(2, 9), range(-1, 2)])
def test_layers_out_of_range(layers: range) -> None:
    with private("sim", 2) as made:
        first, second = made.instances
        with pytest.raises(UsageError, match="tiny-llama"):
            made.run(first.load(layers, second))
        with pytest.raises(UsageError, match="tiny-llama"):
            made.run(first.drop(layers))
        with pytest.raises(UsageError, match="tiny-llama"):
            made.run(made.cluster.move_kv([], layers, first, second))


def test_a_move_between_places_without_a_path() -> None:
    apart = replace(hardware(2), devices_per_node=1, nic_bytes_per_s=0.0)  # two nodes, no network
    with private("sim", 2, on=apart, resident={1: range(0)}) as made:
        first, second = made.instances
        with pytest.raises(UsageError, match="needs the link"):
            made.run(second.load(range(DEPTH), first))
