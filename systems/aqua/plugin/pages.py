"""What the scheduler's side tells the workers to copy, and where to. Plain data.

Each iteration has one `Pages`. A page that is not on the device is in producers' regions, block by
block, or in host memory. A worker's KV is a shard of each block. All shards of a request are in
leases, each in one of its rank, or none is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata


class Slots(NamedTuple):
    """One rank's blocks of a lease's region. allocation: its name at the coordinator."""

    lease: str
    allocation: str
    blocks: list[int]


class Page(NamedTuple):
    """Blocks of one request that are copied."""

    request_id: str
    block_ids: list[int]  # on the device
    first: int  # which of the request's saved blocks block_ids[0] is
    slots: list[Slots] | None  # of each rank; None: host memory


@dataclass
class Pages(KVConnectorMetadata):
    """The copies of one iteration, in the order of execution: page-ins come last."""

    migrated: list[Page] = field(default_factory=list)  # from a lease to host memory
    returned: list[Page] = field(default_factory=list)  # from host memory to a lease
    dropped: list[str] = field(default_factory=list)
    out: list[Page] = field(default_factory=list)
    into: list[Page] = field(default_factory=list)
    leases: set[str] = field(default_factory=set)  # in which KV lies after these copies
