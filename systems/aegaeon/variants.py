"""Every rule in which the published code (`system.variant=artifact`) differs from the paper.

README.md has the table ("Where it deviates: variants"). Algorithms 1 and 2 ask here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.device.block_pool import BlockPool
from harness.pooled.instance import PooledInstance
from systems.aegaeon.decode import DecodeBatch, first_with_room, grouped
from systems.aegaeon.prefill import JobQueue, Prefiller


@dataclass(kw_only=True, slots=True)
class Variant:
    """`system.variants`: one rule a field."""

    accumulated_group_size: bool  # line 6 of Algorithm 1; false: only pending requests count
    load_by_time: bool  # line 9 of Algorithm 1; false: by the number of pending requests
    pop_before_run: bool  # the request that is being prefilled counts in no group and no load
    prefetch_once: bool  # chosen once after a switch, from this round's turns; false: at every step
    pcie_efficiency: float  # β of eq. 4, as a share of the nominal bandwidth
    repack_rounds: bool  # each round packs all requests into new batches; false: batches live on
    fixed_model_order: bool  # of the turns in a round; false: the order of the rotating list
    pin_models_to_nodes: bool  # only node i mod n serves model i

    def load(self, queue: JobQueue, running: str | None) -> float:
        """Line 9 of Algorithm 1: the load of one instance, in seconds or in requests."""
        return queue.pending_time_s(running) if self.load_by_time else queue.num_pending

    def loads(self, prefillers: Sequence[Prefiller]) -> list[float]:
        """Those of several instances."""
        return [self.load(each.jobs, each.instance.model) for each in prefillers]

    def next_round(
        self, batches: Sequence[DecodeBatch], kv: Callable[[str], BlockPool],
        lookahead_tokens: int, models: Sequence[str],
    ) -> list[DecodeBatch]:  # fmt: skip
        """Line 6 of Algorithm 2: the work list at the start of a round.

        kv: model -> blocks of the model's shape. models: the fixed order of models.
        """
        if self.repack_rounds:
            batches = repacked(batches, kv, lookahead_tokens)
        if self.fixed_model_order:
            return by_model_order(batches, models)
        return grouped(batches)


def repacked(
    batches: Sequence[DecodeBatch], kv: Callable[[str], BlockPool], lookahead_tokens: int
) -> list[DecodeBatch]:
    """The artifact's step before line 6: packs all requests of the work list into new batches.

    Requests are taken FCFS; each joins the first batch with room. kv: as in `next_round`.
    """
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
    """The artifact's order: like `grouped`, but the order of models is always that of `models`."""
    return sorted(batches, key=lambda batch: models.index(batch.model))


def check_nodes(
    nodes: Sequence[int], prefill: Sequence[PooledInstance], decode: Sequence[PooledInstance]
) -> None:
    """Raises ValueError unless every node has prefill and decode instances, which models pinned to
    nodes need."""
    for node in nodes:
        for phase, instances in (("prefills", prefill), ("decodes", decode)):
            if all(instance.node != node for instance in instances):
                raise ValueError(
                    f"system.variant=artifact pins models to nodes, and no instance of node {node} "
                    f"{phase}: change system.num_prefill, or use system.variant=paper"
                )
