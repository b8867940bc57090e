"""Where instances go: within nodes, for tensor parallelism has no links between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from harness.calibrate import zoo
from harness.cost.hardware import Hardware
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.placement import Placement, dedicated, pooled
from tests.running import hardware_profile

Place = Callable[[Mapping[str, ModelSpec], Hardware], list[Placement]]
BOTH = pytest.mark.parametrize("place", [dedicated, pooled])
H800 = replace(hardware_profile("h800x16"), num_devices=15)


@BOTH
@pytest.mark.parametrize(("tp", "firsts"), [(3, [0, 3, 8, 11]), (4, [0, 4, 8]), (8, [0])])
def test_an_instance_has_its_devices_in_one_node(place: Place, tp: int, firsts: list[int]) -> None:
    model = replace(zoo.model("opt-66b"), tp=tp)  # 72 heads
    placed = [placement.devices for placement in place({"m": model}, H800)]
    assert placed == [range(first, first + tp) for first in firsts]


@BOTH
@pytest.mark.parametrize(("name", "tp"), [("a800x8", 4), ("h100x16", 16)])
def test_parallelism_wider_than_a_node_is_refused(place: Place, name: str, tp: int) -> None:
    hardware, model = hardware_profile(name), zoo.sharded("llama3.1-70b", tp)
    with pytest.raises(UsageError, match=rf"model.tp={tp} is wider .* valid: 1 to \d"):
        place({"m": model}, hardware)


def test_parallelism_that_cuts_heads_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tp=3 does not divide the 32 heads; .*: 1, 2, 4, 8, 16"):
        replace(zoo.model("llama2-7b"), tp=3)
