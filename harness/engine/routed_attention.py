"""Attention of a stage goes to where the KV is: q, k and v of some rows go over to the worker that
holds theirs, layer by layer, and the result comes back. Attention to one request's KV of one layer
is always whole, in one place.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import torch

from harness.engine.attention import CacheAttention, cache_attention
from harness.engine.given_up import Abandoned, GivenUp
from harness.engine.kv_cache import KvCache
from harness.engine.model import Attend
from harness.engine.peers import Peers
from harness.engine.work import BatchWork, Part, StageWork

Answer = tuple[int, int, int, str]  # batch, step, layer, holder


class RoutedAttention:
    """`over`: of the worker."""

    def __init__(
        self, name: str, cache: KvCache, peers: Peers, device: torch.device, over: GivenUp
    ) -> None:
        self._name, self._cache, self._peers, self._device = name, cache, peers, device
        self._over = over
        self._results: dict[Answer, queue.SimpleQueue[bytes | None]] = {}
        self._lock = threading.Lock()

    def routed(self, work: StageWork, own: list[CacheAttention], step: Callable[[], int]) -> Attend:
        """Attention of a stage: page group by page group, each part where its KV is. The parts
        that are this worker's are added to `own`. `step()`: the one that runs."""
        plans: dict[int, list[tuple[Part, torch.Tensor | None, CacheAttention | None]]] = {}
        for group, parts in work.groups.items():
            plans[group] = []
            for part in parts:
                rows = None if len(parts) == 1 else self._rows(work, part)
                mine = None
                if part.holder == self._name:
                    mine = part_attention(self._cache, work.batch, part, self._device)
                    own.append(mine)
                plans[group].append((part, rows, mine))

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            parts = plans[layer // work.page_layers]
            if len(parts) == 1 and parts[0][2] is not None:
                with self._over.writing(work.number, "compute"):
                    return parts[0][2](layer, q, k, v)
            return self._joined(work, step(), layer, parts, q, k, v)

        return attend

    def answered(self, key: Answer, payload: bytes) -> None:
        """On the holder's thread. Where nobody waits any more, it is dropped."""
        with self._lock:
            mailbox = self._results.get(key)
        if mailbox is not None:
            mailbox.put(payload)

    def give_up(self, batch: int) -> None:
        """Whoever waits for an answer of the batch, which is in `over`, gets none."""
        self._tell(lambda key: key[0] == batch)

    def on_lost(self, name: str) -> None:
        self._tell(lambda key: key[3] == name)

    def _tell(self, concerned: Callable[[Answer], bool]) -> None:
        with self._lock:
            waiting = [mailbox for key, mailbox in self._results.items() if concerned(key)]
        for mailbox in waiting:
            mailbox.put(None)

    def _joined(
        self, work: StageWork, step: int, layer: int,
        parts: list[tuple[Part, torch.Tensor | None, CacheAttention | None]],
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """Asks the holders first, attends to its own meanwhile, and puts the results together."""
        asked = [part.holder for part, _, mine in parts if mine is None]
        keys: list[Answer] = [(work.number, step, layer, holder) for holder in asked]
        with self._lock:
            self._results |= {key: queue.SimpleQueue() for key in keys}
        try:
            for part, rows, mine in parts:
                if mine is None:
                    self._ask(work, step, layer, part, [_taken(x, rows) for x in (q, k, v)])
            out = torch.empty_like(q)
            for part, rows, mine in parts:
                if mine is not None:
                    with self._over.writing(work.number, "compute"):
                        result = mine(layer, *[_taken(x, rows) for x in (q, k, v)])
                else:
                    result = self._await((work.number, step, layer, part.holder), q)
                if rows is None:
                    return result
                out.index_copy_(0, rows, result)
            return out
        finally:
            with self._lock:
                for key in keys:
                    del self._results[key]

    def _ask(
        self, work: StageWork, step: int, layer: int, part: Part, qkv: list[torch.Tensor]
    ) -> None:
        header = {
            "op": "attend", "batch": work.number, "step": step, "layer": layer,
            "group": layer // work.page_layers, "tokens": len(qkv[0]),
        }  # fmt: skip
        flat = torch.cat([x.reshape(-1) for x in qkv])
        self._peers.send(part.holder, work.holder_paths[part.holder], flat, header)

    def _await(self, key: Answer, like: torch.Tensor) -> torch.Tensor:
        mailbox = self._results[key]
        if key[0] in self._over or self._peers.is_lost(key[3]):
            mailbox.put(None)
        payload = mailbox.get()
        if payload is None:
            raise Abandoned
        return self._peers.tensor(payload, [-1, *like.shape[1:]])

    def _rows(self, work: StageWork, part: Part) -> torch.Tensor:
        """The batch's rows that are `part`'s."""
        starts, at = [], 0
        for chunk in work.batch.chunks:
            starts.append(range(at, at + chunk.num_tokens))
            at += chunk.num_tokens
        rows = [row for i in part.chunks for row in starts[i]] + [at + i for i in part.decodes]
        return torch.tensor(rows, dtype=torch.int64, device=self._device)


def _taken(tensor: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    return tensor if rows is None else tensor.index_select(0, rows)


def part_attention(
    cache: KvCache, batch: BatchWork, part: Part, device: torch.device
) -> CacheAttention:
    """Attention of the requests of `part` of `batch`, over `cache`."""
    with torch.inference_mode():
        return cache_attention(cache, part.of(batch), device)
