"""Attention that a worker lends to stages elsewhere, over KV of their requests that it holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from harness.engine.attention import CacheAttention
from harness.engine.given_up import Abandoned, GivenUp
from harness.engine.kv_cache import KvCache
from harness.engine.mesh import PeerLost
from harness.engine.peers import Peers
from harness.engine.routed_attention import part_attention
from harness.engine.runner import Runner
from harness.engine.stream import Stream
from harness.engine.transport import Header
from harness.engine.work import HoldWork


@dataclass(slots=True)
class _Held:
    """Of one page group of a batch's stage."""

    work: HoldWork
    attention: CacheAttention
    step: int = 0


class LentAttention:
    """All of it happens in the stream `attend`. `over`: of the worker."""

    def __init__(
        self, runner: Runner, cache: KvCache, peers: Peers, stream: Callable[[str], Stream],
        over: GivenUp,
    ) -> None:  # fmt: skip
        self._runner, self._cache, self._peers, self._over = runner, cache, peers, over
        self._attend = stream("attend")
        self._holds: dict[int, dict[int, _Held]] = {}  # batch, page group
        # What came from a peer before the harness's word, by batch.
        self._early: dict[int, list[tuple[str, Header, bytes]]] = {}

    def hold(self, header: Header) -> None:
        self._attend.put(lambda: self._register(header["work"]))

    def let_go(self, batch: int) -> None:
        self._attend.put(lambda: self._forget(batch))

    def asked(self, name: str, header: Header, payload: bytes) -> None:
        """On the peer's thread."""
        self._attend.put(lambda: self._attend_for(name, header, payload))

    def _register(self, work: HoldWork) -> None:
        if work.number in self._over:
            return
        mine = self._holds.setdefault(work.number, {})
        device = self._runner.device
        for group, part in work.groups.items():
            attention = part_attention(self._cache, work.batch, part, device)
            mine[group] = _Held(work, attention)
        for name, header, payload in self._early.pop(work.number, ()):
            self._attend_for(name, header, payload)

    def _forget(self, batch: int) -> None:
        self._holds.pop(batch, None)
        self._early.pop(batch, None)

    def _attend_for(self, name: str, header: Header, payload: bytes) -> None:
        batch, layer = header["batch"], header["layer"]
        held = self._holds.get(batch, {}).get(header["group"])
        if held is None:
            if batch not in self._over:
                self._early.setdefault(batch, []).append((name, header, payload))
            return
        answer = {"op": "attended", "batch": batch, "step": header["step"], "layer": layer}
        try:
            with torch.inference_mode(), self._over.writing(batch, "attend"):
                if header["step"] > held.step:
                    held.attention.advance()
                    held.step += 1
                q, k, v = self._qkv(payload, header["tokens"])
                out = held.attention(layer, q, k, v)
            self._peers.send(name, held.work.requester_path, out, answer)
        except (PeerLost, Abandoned):
            self._holds.pop(batch, None)

    def _qkv(self, payload: bytes, tokens: int) -> list[torch.Tensor]:
        """q, k and v of `tokens` rows, as they come one after the other."""
        heads, kv_heads, head_dim = self._runner.attention_shape
        counts = heads, kv_heads, kv_heads
        parts = self._peers.tensor(payload, [-1]).split([tokens * n * head_dim for n in counts])
        return [part.view(tokens, n, head_dim) for part, n in zip(parts, counts, strict=True)]
