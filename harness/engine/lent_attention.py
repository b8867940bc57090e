"""Attention that a worker lends to stages elsewhere, over KV of their requests that it holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from harness.engine.attention import CacheAttention
from harness.engine.flight_work import HoldWork, hold_work
from harness.engine.given_up import Abandoned, GivenUp
from harness.engine.kv_cache import KvCache
from harness.engine.mesh import PeerLost
from harness.engine.peers import Peers
from harness.engine.routed_attention import part_attention
from harness.engine.runner import Runner
from harness.engine.stream import Lane
from harness.engine.transport import Header


@dataclass(slots=True)
class _Held:
    """Of one page group of a flight's stage."""

    work: HoldWork
    attention: CacheAttention
    step: int = 0


class LentAttention:
    """All of it happens in the lane `attend`. `over`: of the worker."""

    def __init__(
        self, runner: Runner, cache: KvCache, peers: Peers, lane: Callable[[str], Lane],
        over: GivenUp,
    ) -> None:  # fmt: skip
        self._runner, self._cache, self._peers, self._over = runner, cache, peers, over
        self._lane = lane
        self._holds: dict[int, dict[int, _Held]] = {}  # flight, page group
        # What came from a peer before the harness's word, by flight.
        self._early: dict[int, list[tuple[str, Header, bytes]]] = {}

    def hold(self, header: Header, payload: bytes) -> None:
        work = hold_work(header, payload)
        self._lane("attend").put(lambda: self._register(work))

    def let_go(self, flight: int) -> None:
        self._lane("attend").put(lambda: self._forget(flight))

    def asked(self, name: str, header: Header, payload: bytes) -> None:
        """On the peer's thread."""
        self._lane("attend").put(lambda: self._attend_for(name, header, payload))

    def _register(self, work: HoldWork) -> None:
        if work.flight in self._over:
            return
        mine = self._holds.setdefault(work.flight, {})
        device = self._runner.device
        for group, (part,) in work.groups.items():
            attention = part_attention(self._cache, work.chunks, work.decodes, part, device)
            mine[group] = _Held(work, attention)
        for name, header, payload in self._early.pop(work.flight, ()):
            self._attend_for(name, header, payload)

    def _forget(self, flight: int) -> None:
        self._holds.pop(flight, None)
        self._early.pop(flight, None)

    def _attend_for(self, name: str, header: Header, payload: bytes) -> None:
        flight, layer = header["flight"], header["layer"]
        held = self._holds.get(flight, {}).get(header["group"])
        if held is None:
            if flight not in self._over:
                self._early.setdefault(flight, []).append((name, header, payload))
            return
        answer = {"op": "attended", "flight": flight, "step": header["step"], "layer": layer}
        try:
            with torch.inference_mode(), self._over.writing(flight, "attend"):
                if header["step"] > held.step:
                    held.attention.advance()
                    held.step += 1
                q, k, v = self._qkv(payload, header["tokens"])
                out = held.attention(layer, q, k, v)
            self._peers.send(name, held.work.requester_path, out, answer)
        except (PeerLost, Abandoned):
            self._holds.pop(flight, None)

    def _qkv(self, payload: bytes, tokens: int) -> list[torch.Tensor]:
        """q, k and v of `tokens` rows, as they come one after the other."""
        heads, kv_heads, head_dim = self._runner.attention_shape
        counts = heads, kv_heads, kv_heads
        parts = self._peers.tensor(payload, [-1]).split([tokens * n * head_dim for n in counts])
        return [part.view(tokens, n, head_dim) for part, n in zip(parts, counts, strict=True)]
