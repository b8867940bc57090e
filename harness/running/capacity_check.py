"""Whether a schedule's requests can ever fit: refused before the first one is sent, not found out
by one that waits for ever."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from harness.cluster import Cluster
from harness.elastic.instance import ElasticInstance
from harness.errors import UsageError
from harness.schedule import Schedule


def check_capacity(schedule: Schedule, cluster: Cluster) -> None:
    """Raises UsageError where a request is larger than all the KV memory that it may ever have."""
    longest = longest_tokens(schedule)
    more = "engine.pool.memory_share" if cluster.pool else "engine.num_kv_blocks"
    for where, model, room in _rooms(cluster):
        if longest.get(model, 0) > room:
            raise UsageError(
                f"the longest request needs KV for {longest[model]} tokens, but {where} has "
                f"room for {room}; raise {more}, or lower model.max_position (longer prompts are "
                "then cut) or workload.lengths.max_prompt_tokens"
            )


def _rooms(cluster: Cluster) -> Iterator[tuple[str, str, int]]:
    """Yields each place, a model whose requests must fit there, and how many tokens do."""
    for instance in cluster.instances:
        for name, spec in cluster.models.items():
            if instance.model is spec:
                yield instance.name, name, instance.kv.num_blocks * instance.kv.block_tokens
    for pooled in cluster.pool:
        for name in pooled.models:
            kv = pooled.kv(name)
            yield pooled.name, name, kv.num_blocks * kv.block_tokens
    if cluster.elastic is None:
        return
    across = any(p.elastic is not None and p.elastic.kv_across for p in cluster.placements)
    for name, spec in cluster.models.items():
        those = [each for each in cluster.elastic.instances if each.model is spec]
        if not those:
            continue
        if across and len(those) > 1:
            yield f"the pipeline of all {len(those)} instances", name, room_across(those)
        else:
            largest = max(those, key=lambda each: each.kv.num_blocks)
            yield largest.name, name, largest.kv.num_blocks * largest.kv.block_tokens


def room_across(instances: list[ElasticInstance]) -> int:
    """Tokens whose KV fits on equal `instances` that keep one copy of the weights between them."""
    layout = instances[0].layout
    weights = layout.weight_bytes(range(layout.spec.num_layers))
    pages = (len(instances) * layout.memory_bytes - weights) // layout.page_bytes
    return pages // layout.num_groups * layout.block_tokens


def longest_tokens(schedule: Schedule) -> dict[str, int]:
    """The tokens of each model's longest request, prompt and output."""
    tokens = schedule.prompt_tokens + schedule.output_tokens
    of_model = pa.table({"model": schedule.model, "tokens": tokens}).group_by("model")
    longest = of_model.aggregate([("tokens", "max")]).to_pylist()
    return {row["model"]: row["tokens_max"] for row in longest}
