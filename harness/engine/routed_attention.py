"""Attention where the KV is (KunServe §4.2's remote attention): q, k and v of some rows go over to
the worker that holds theirs, layer by layer, and the result comes back. Attention to one request's
KV of one layer is always whole, in one place.

`RoutedAttention` is the stage's side, `LentAttention` the holder's.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from harness.engine.command_loop import Stream
from harness.engine.given_up import Abandoned, GivenUp
from harness.engine.kernels import BatchAttention
from harness.engine.mesh import Peers
from harness.engine.model import Attend
from harness.engine.runner import Runner
from harness.engine.transport import Header, PeerLost, of_kind
from harness.engine.work import BatchWork, HoldWork, Part, StageWork

Answer = tuple[int, int, int, str]  # batch, step, layer, holder


class RoutedAttention:
    """`over`: of the worker."""

    def __init__(self, name: str, runner: Runner, peers: Peers, over: GivenUp) -> None:
        self._name, self._runner, self._peers, self._over = name, runner, peers, over
        self._results: dict[Answer, queue.SimpleQueue[bytes | None]] = {}
        self._lock = threading.Lock()

    def routed(self, work: StageWork, own: list[BatchAttention], step: Callable[[], int]) -> Attend:
        """Attention of a stage: page group by page group, each part where its KV is. Of the parts
        that are this worker's, those to be advanced are added to `own`. `step()`: the one that
        runs."""
        here = {g: p for g, parts in work.groups.items() for p in parts if p.holder == self._name}
        mine: dict[int, BatchAttention] = {}
        for alike in attentions_of(self._runner, work.batch, here):
            own.append(next(iter(alike.values())))
            mine |= alike
        plans: dict[int, list[tuple[Part, torch.Tensor | None, BatchAttention | None]]] = {}
        for group, parts in work.groups.items():
            rows: list[torch.Tensor | None] = [None]
            if len(parts) > 1:
                rows = [self._rows(work, part) for part in parts]
            of_part = [mine[group] if part.holder == self._name else None for part in parts]
            plans[group] = list(zip(parts, rows, of_part, strict=True))

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            parts = plans[layer // work.page_layers]
            if len(parts) == 1 and parts[0][2] is not None:
                with self._over.writing(work.number, "compute"):
                    return parts[0][2](layer, q, k, v)
            return self._joined(work, step(), layer, parts, q, k, v)

        return attend

    def answered(self, name: str, header: Header, payload: bytearray) -> None:
        """Hands an answer to who waits for it, on the holder's thread. Where nobody waits any
        more, it is dropped."""
        with self._lock:
            mailbox = self._results.get((header["batch"], header["step"], header["layer"], name))
        if mailbox is not None:
            mailbox.put(bytes(payload))

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
        parts: list[tuple[Part, torch.Tensor | None, BatchAttention | None]],
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
        return torch.tensor(rows, dtype=torch.int64, device=self._runner.device)


def _taken(tensor: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    return tensor if rows is None else tensor.index_select(0, rows)


def attentions_of(
    runner: Runner, batch: BatchWork, parts: Mapping[int, Part]
) -> list[dict[int, BatchAttention]]:
    """The attention of one worker's `parts` of a batch, by page group. Groups that have the same
    requests stand together: one step of any of them is a step of all."""
    alike: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for group, part in parts.items():
        alike.setdefault((tuple(part.chunks), tuple(part.decodes)), []).append(group)
    found = []
    for groups in alike.values():
        tables, of_them = [parts[group].blocks for group in groups], parts[groups[0]].of(batch)
        found.append(dict(zip(groups, runner.attentions(of_them, tables), strict=True)))
    return found


@dataclass(slots=True)
class _Held:
    """What a holder keeps for page groups of a batch's stage that have the same requests."""

    work: HoldWork
    attentions: Mapping[int, BatchAttention]
    step: int = 0


class LentAttention:
    """Attends for peers, all of it in the stream `attend`. `over`: of the worker."""

    def __init__(self, runner: Runner, peers: Peers, attend: Stream, over: GivenUp) -> None:
        self._runner, self._peers, self._attend, self._over = runner, peers, attend, over
        self._holds: dict[int, dict[int, _Held]] = {}  # batch, page group
        # What came from a peer before the harness's word, by batch.
        self._early: dict[int, list[tuple[str, Header, bytes]]] = {}

    def hold(self, header: Header) -> None:
        work = of_kind(HoldWork, header["work"])
        self._attend.put(lambda: self._register(work))

    def let_go(self, batch: int) -> None:
        self._attend.put(lambda: self._forget(batch))

    def asked(self, name: str, header: Header, payload: bytearray) -> None:
        """Queues the attention that a peer asks for; called on the peer's thread."""
        self._attend.put(lambda: self._attend_for(name, header, bytes(payload)))

    def _register(self, work: HoldWork) -> None:
        if work.number in self._over:
            return
        mine = self._holds.setdefault(work.number, {})
        with torch.inference_mode():
            for alike in attentions_of(self._runner, work.batch, work.groups):
                mine |= dict.fromkeys(alike, _Held(work, alike))
        for name, header, payload in self._early.pop(work.number, ()):
            self._attend_for(name, header, payload)

    def _forget(self, batch: int) -> None:
        self._holds.pop(batch, None)
        self._early.pop(batch, None)

    def _attend_for(self, name: str, header: Header, payload: bytes) -> None:
        batch, layer, group = header["batch"], header["layer"], header["group"]
        held = self._holds.get(batch, {}).get(group)
        if held is None:
            if batch not in self._over:
                self._early.setdefault(batch, []).append((name, header, payload))
            return
        answer = {"op": "attended", "batch": batch, "step": header["step"], "layer": layer}
        try:
            with torch.inference_mode(), self._over.writing(batch, "attend"):
                if header["step"] > held.step:
                    held.attentions[group].advance()
                    held.step += 1
                q, k, v = self._qkv(payload, header["tokens"])
                out = held.attentions[group](layer, q, k, v)
            self._peers.send(name, held.work.requester_path, out, answer)
        except (PeerLost, Abandoned):
            self._holds.pop(batch, None)

    def _qkv(self, payload: bytes, tokens: int) -> list[torch.Tensor]:
        """q, k and v of `tokens` rows, as they come one after the other."""
        spec = self._runner.spec
        head_dim, counts = spec.head_dim, (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
        parts = self._peers.tensor(payload, [-1]).split([tokens * n * head_dim for n in counts])
        return [part.view(tokens, n, head_dim) for part, n in zip(parts, counts, strict=True)]
