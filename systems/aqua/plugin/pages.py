"""What the scheduler's side tells the workers to copy, and where to. Plain data.

Each iteration has one `Pages`. A page that is not on the device is in a producer's region, block by
block (`Slots`), or in host memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata


class Slots(NamedTuple):
    """Blocks of a lease's region. allocation: its name at the coordinator."""

    lease: str
    allocation: str
    blocks: list[int]


class Page(NamedTuple):
    """Blocks of one request that are copied."""

    request_id: str
    block_ids: list[int]  # on the device
    first: int  # which of the request's saved blocks block_ids[0] is
    slots: Slots | None  # None: host memory


@dataclass
class Pages(KVConnectorMetadata):
    """The copies of one iteration, in the order of execution: page-ins come last."""

    migrated: list[Page] = field(default_factory=list)  # from a lease to host memory
    returned: list[Page] = field(default_factory=list)  # from host memory to a lease
    dropped: list[str] = field(default_factory=list)
    out: list[Page] = field(default_factory=list)
    into: list[Page] = field(default_factory=list)
