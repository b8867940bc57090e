"""Where the published code (`system.variant=artifact`) differs from the paper: all of it.

README.md, "Variants", has the table. Algorithms 1 and 2 ask here what a variant decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.device.block_pool import BlockPool
from harness.device.pooled import PooledInstance
from systems.aegaeon.decode import DecodeBatch, first_with_room, grouped
from systems.aegaeon.estimate import Estimator
from systems.aegaeon.prefill import JobQueue, pending_time_s


@dataclass(kw_only=True, slots=True)
class Variant:
    """Where the paper and its artifact differ (README.md, "Variants")."""

    accumulated_group_size: bool  # line 6 of Algorithm 1; false: what is left of the group
    load_by_time: bool  # line 9 of Algorithm 1; false: by the number of pending requests
    pop_before_run: bool  # the request that is being prefilled is in no group and no load
    prefetch_once: bool  # when a model has come, of this round's turns; false: at every step
    pcie_efficiency: float  # β of eq. 4, of the nominal bandwidth
    repack_rounds: bool  # a round's batches are made anew of all its requests; false: they live on
    fixed_model_order: bool  # of a round; false: the rotating list's
    pin_models_to_nodes: bool  # model i is served by node i mod n alone

    def load(self, queue: JobQueue, running: str | None, estimator: Estimator) -> float:
        """Line 9 of Algorithm 1, of one instance."""
        if self.load_by_time:
            return pending_time_s(queue, running, estimator)
        return sum(len(group.pending) for group in queue)

    def next_round(
        self, batches: Sequence[DecodeBatch], kv: Callable[[str], BlockPool],
        lookahead_tokens: int, models: Sequence[str],
    ) -> list[DecodeBatch]:  # fmt: skip
        """Line 6 of Algorithm 2, on a work list. kv: the blocks of a model's shape."""
        if self.repack_rounds:
            batches = repacked(batches, kv, lookahead_tokens)
        if self.fixed_model_order:
            return by_model_order(batches, models)
        return grouped(batches)


def repacked(
    batches: Sequence[DecodeBatch], kv: Callable[[str], BlockPool], lookahead_tokens: int
) -> list[DecodeBatch]:
    """The artifact's, before line 6: all requests of the work list in batches anew, first come
    first served, each in the first that has room for it. kv: the blocks of a model's shape."""
    requests = [request for batch in batches for request in batch.requests]
    packed: list[DecodeBatch] = []
    for request in sorted(requests, key=lambda request: request.arrival_s):
        batch = first_with_room(packed, request, kv(request.model), lookahead_tokens)
        if batch is None:
            packed.append(DecodeBatch(request.model, [request]))
        else:
            batch.requests.append(request)
    return packed


def by_model_order(batches: Sequence[DecodeBatch], models: Sequence[str]) -> list[DecodeBatch]:
    """As `grouped`, the models in one order for good: the artifact's."""
    return sorted(batches, key=lambda batch: models.index(batch.model))


def check_nodes(
    nodes: Sequence[int], prefill: Sequence[PooledInstance], decode: Sequence[PooledInstance]
) -> None:
    """Raises ValueError unless every node has both phases, as models pinned to nodes need it."""
    for node in nodes:
        for phase, instances in (("prefills", prefill), ("decodes", decode)):
            if all(instance.node != node for instance in instances):
                raise ValueError(
                    f"system.variant=artifact pins models to nodes, and no instance of node {node} "
                    f"{phase}: change system.num_prefill, or use system.variant=paper"
                )
