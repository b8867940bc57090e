"""Llumnix (pipeline): the static pipeline that KunServe's paper compares with (KunServe §5.1).

"The pipeline stage number is set to the buddy group size found by our algorithm under one memory
throttling." `systems.kunserve.merge.equal_groups` makes the pipelines.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.model_spec import ModelSpec
from systems.kunserve.group import alone
from systems.kunserve.plan import throughput_greedy


def stages_of_one_throttling(
    instances: Sequence[str], required_bytes: int, model: ModelSpec
) -> int:
    """The size of the largest group that KunServe's Algorithm 1 makes of whole instances.

    required_bytes: memory for KV that the drop must free (R).
    """
    plan = throughput_greedy(
        [alone(name, model.num_layers) for name in instances], required_bytes, model
    )
    return max(len(group) for group in plan.groups)
