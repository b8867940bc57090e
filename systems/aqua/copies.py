"""The copies of a consumer's paged KV: out of the device, back, from place to place (section 6).

Copies of one place go together, block by block or gathered into one (`config.copies`). With
`dirty_only`, the public code's way, a copy stays when its request is paged in, so that the next
page-out copies only the blocks that were written since.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from harness.elastic.cluster import ElasticCluster
from harness.elastic.fabric import Sending
from harness.elastic.instance import ElasticInstance
from harness.elastic.kv_directory import Holder
from harness.elastic.kv_region import KvStore
from harness.elastic.page_tables import KvCopy
from harness.errors import InstanceLost, RunError
from harness.request import Request
from systems.aqua.config import AquaConfig
from systems.aqua.paging import blocks_out
from systems.aqua.tensors import Tensor


class PagingCopies:
    """What pages one consumer. `store`: the memory of a lease, or with None the node's DRAM.
    `lose`: takes a lease whose lender died during a copy. Copies that it interrupts return False.
    """

    def __init__(
        self, config: AquaConfig, cluster: ElasticCluster, consumer: ElasticInstance,
        store: Callable[[str | None], KvStore], lose: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._cluster, self._consumer, self._store, self._lose = cluster, consumer, store, lose
        layout = consumer.layout
        self._dirty_only = config.own.scheduler.dirty_only
        self._by_block = config.copies == "by_block"
        page = layout.page_bytes // (2 * layout.page_layers)  # keys, or values, of one layer
        self._chunk_bytes = page if self._by_block else None
        self._issue_s = config.copy_issue_s if self._by_block else None
        self._layers = range(consumer.model.num_layers)

    async def page_out(self, tensors: Sequence[Tensor], lease: str | None) -> None:
        """Takes the KV of the tensors' requests off the device, to one place."""
        purpose = f"page out to {place_name(lease)}"
        if self._dirty_only:
            await self._save(tensors, lease, purpose)
        else:
            await self._stage(self._num_held(tensors), "gather")
            await self.move(tensors, self._consumer, self._store(lease), lease, purpose)

    async def page_in(self, tensors: Sequence[Tensor], lease: str | None) -> bool:
        """Brings the KV of the tensors' requests onto the device, from one place."""
        purpose = f"page in from {place_name(lease)}"
        if self._dirty_only:
            there = await self._load(tensors, lease, purpose)
        else:
            there = await self.move(tensors, self._store(lease), self._consumer, lease, purpose)
        if there:
            await self._stage(self._num_held(tensors), "scatter")
        return there

    async def move(
        self, tensors: Sequence[Tensor], source: Holder, target: Holder, lease: str | None,
        purpose: str,
    ) -> bool:  # fmt: skip
        """Moves the tensors' KV to `target`; it is nowhere else then."""
        moving = self._cluster.move_kv(
            [tensor.block_owner for tensor in tensors],
            self._layers,
            source,
            target,
            self._sending(purpose),
        )
        return await self.done(moving, lease, purpose)

    async def prefix(self, tensor: Tensor, request: Request, blocks: range, *, out: bool) -> bool:
        """Copies `blocks`, a common prefix, from the request to the tensor, or with `out` false the
        other way. Both keep what they have."""
        here, there = (self._consumer, request), (self._store(tensor.lease), tensor.block_owner)
        (source, who), (target, to) = (here, there) if out else (there, here)
        purpose = f"prefix {'out to' if out else 'in from'} {place_name(tensor.lease)}"
        if out:
            await self._stage(len(blocks), "gather")
        copies = [KvCopy(who, to, blocks)]
        copying = self._cluster.copy_kv(
            copies, self._layers, source, target, self._sending(purpose)
        )
        copied = await self.done(copying, tensor.lease, purpose, () if out else (request,))
        if copied and not out:
            await self._stage(len(blocks), "scatter")
        return copied

    async def _save(self, tensors: Sequence[Tensor], lease: str | None, purpose: str) -> None:
        """Saves what was written since the last time. A request whose lender dies meanwhile stays
        on the device."""
        kv, copies = self._consumer.kv, []
        for tensor in tensors:
            request, owner = tensor.paged, tensor.block_owner
            blocks = blocks_out(request.computed_tokens, owner.computed_tokens, kv.block_tokens)
            copies.append(KvCopy(request, owner, blocks))
        await self._stage(sum(len(each.blocks) for each in copies), "gather")
        saving = self._cluster.copy_kv(
            copies, self._layers, self._consumer, self._store(lease), self._sending(purpose),
            moved=[each.request for each in copies],
        )  # fmt: skip
        if await self.done(saving, lease, purpose):
            for request, owner, _ in copies:
                owner.computed_tokens = request.computed_tokens
                self._cluster.directory.forget(request)
                kv.release(request)

    async def _load(self, tensors: Sequence[Tensor], lease: str | None, purpose: str) -> bool:
        """Loads the tensors' KV onto the device. Copies stay."""
        kv, copies = self._consumer.kv, []
        for tensor in tensors:
            request = tensor.paged
            if not kv.grow(request, request.computed_tokens):
                raise RunError(f"request {request.request_id} has no room within its slice")
            copies.append(KvCopy(tensor.block_owner, request, range(kv.held[request.request_id])))
        coming = [each.to for each in copies]
        loading = self._cluster.copy_kv(
            copies, self._layers, self._store(lease), self._consumer, self._sending(purpose),
            moved=coming,
        )  # fmt: skip
        return await self.done(loading, lease, purpose, coming)

    def _sending(self, purpose: str) -> Sending:
        return Sending(purpose, chunk_bytes=self._chunk_bytes, issue_s=self._issue_s)

    async def done(
        self, copying: Awaitable[bool | None], lease: str | None, purpose: str,
        coming: Sequence[Request] = (),
    ) -> bool:  # fmt: skip
        """Waits for a copy; False if the lender died. `coming`: requests of which nothing is on the
        device then."""
        try:
            if await copying is False:
                raise RunError(f"{purpose}: no room for KV that was counted to have some")
        except InstanceLost:
            self._consumer.check_alive()
            for request in coming:
                self._consumer.kv.release(request)
            if lease is not None:
                self._lose(lease)
            return False
        return True

    async def _stage(self, num_blocks: int, what: str) -> None:
        """Passes gathered copies through the staging tensor."""
        if not self._by_block and num_blocks:
            num_bytes = num_blocks * block_bytes(self._consumer)
            await self._cluster.stage(self._consumer.memory, num_bytes, what)

    def _num_held(self, tensors: Iterable[Tensor]) -> int:
        return sum(self._consumer.kv.held.get(each.paged.request_id, 0) for each in tensors)


def block_bytes(instance: ElasticInstance) -> int:
    """Bytes of a block's KV, all layers, on each device."""
    return len(instance.kv.all_groups) * instance.page_bytes


def place_name(lease: str | None) -> str:
    return "DRAM" if lease is None else "lease"
