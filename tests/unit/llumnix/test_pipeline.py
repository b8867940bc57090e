"""The stages of Llumnix (pipeline) follow KunServe's plan under one throttling."""

from __future__ import annotations

import pytest

from systems.kunserve.merge import equal_groups
from systems.llumnix.system import stages_of_one_throttling
from tests.unit.kunserve.strategies import QWEN_14B, check

NAMES = [f"i{k}" for k in range(8)]


@pytest.mark.parametrize(("replicas", "stages"), [(0, 1), (1, 2), (4, 2), (4.5, 4), (7, 8)])
def test_the_largest_group_of_the_plan(replicas: float, stages: int) -> None:
    required = int(replicas * QWEN_14B.weight_bytes)
    assert stages_of_one_throttling(NAMES, required, QWEN_14B) == stages


def test_pipelines_of_that_many_stages() -> None:
    groups = equal_groups(NAMES, 4, 48)
    check(groups, 48)
    assert [len(group) for group in groups] == [4, 4]
    assert equal_groups(NAMES[:2], 1, 48) == [((NAMES[0], range(48)),), ((NAMES[1], range(48)),)]
    with pytest.raises(ValueError, match="cannot form groups of 3; valid: 1, 2, 4, 8"):
        equal_groups(NAMES, 3, 48)
