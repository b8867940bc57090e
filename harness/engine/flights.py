"""A worker's part in flights: stages it runs, attention it lends to others, results it waits for.

Nothing here blocks on a flight that has not arrived: a stage's next step is a job of the compute
lane, put there when its activations come. The first stage alone decides whether there is a next
step; the last one samples. Attention of a request whose KV another worker holds runs there, whole:
q, k and v go over, the result comes back.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf

import numpy as np
import torch

from harness.engine.attention import CacheAttention, cache_attention
from harness.engine.flight_work import HoldWork, Part, StageWork, hold_work, stage_work
from harness.engine.kv_cache import KvCache
from harness.engine.lane import Lane
from harness.engine.mesh import Mesh, PeerLost
from harness.engine.model import Step
from harness.engine.paced_links import LinkPath, PacedLinks
from harness.engine.runner import Runner
from harness.engine.transport import Connection, Header

Key = tuple[int, int, int]  # flight, step, layer


@dataclass(slots=True, eq=False)
class _Flight:
    work: StageWork
    seq: int | None  # of the harness's command; None: of another stage's
    step: Step
    sampled: torch.Tensor | None
    parts: list[CacheAttention]  # this worker's own, to be advanced
    next_step: int = 0


class _Abandoned(Exception):
    """The flight is over: its harness, or a worker that it needs, has given it up."""


class Flights:
    def __init__(
        self, name: str, runner: Runner, cache: KvCache, harness: Connection, mesh: Mesh,
        links: PacedLinks, lane: Callable[[str], Lane], layer_s: float,
        token_s: float,
    ) -> None:  # fmt: skip
        self._name, self._runner, self._cache = name, runner, cache
        self._harness, self._mesh, self._links = harness, mesh, links
        self._lane, self._layer_s, self._token_s = lane, layer_s, token_s
        self._flights: dict[int, _Flight] = {}
        self._early: dict[int, list[tuple[Header, bytes]]] = {}  # came before the harness's word
        self._holds: dict[int, dict[int, tuple[HoldWork, CacheAttention, list[int]]]] = {}
        self._results: dict[tuple[int, int, int, str], queue.SimpleQueue[bytes | None]] = {}
        self._stopped: set[int] = set()  # seqs
        self._over: set[int] = set()  # flights
        self._kept: dict[int, torch.Tensor] = {}  # flight -> activations of its last layer here
        self._lock = threading.Lock()

    # From the harness

    def take_off(self, header: Header, payload: bytes) -> None:
        work = stage_work(header, payload)
        self._lane("compute").put(lambda: self._register(work, header["seq"]))

    def hold(self, header: Header, payload: bytes) -> None:
        work = hold_work(header, payload)
        self._lane("attend").put(lambda: self._register_hold(work))

    def pass_on(self, header: Header) -> None:
        """What a flight kept here goes to the next one, here or at another worker."""
        lane = "compute" if header["to"] == self._name else "pass"
        self._lane("compute").put(lambda: self._lane(lane).put(lambda: self._pass(header)))

    def stop(self, seq: int) -> None:
        self._stopped.add(seq)

    def abandon(self, flight: int) -> None:
        with self._lock:
            self._over.add(flight)
            waiting = [q for key, q in self._results.items() if key[0] == flight]
        for each in waiting:
            each.put(None)
        self._lane("compute").put(lambda: self._forget(flight))
        self._lane("attend").put(lambda: self._let_go(flight))

    def on_lost(self, name: str) -> None:
        with self._lock:
            waiting = [q for key, q in self._results.items() if key[3] == name]
        for each in waiting:
            each.put(None)

    # From peers, on their threads

    def on_peer(self, name: str, header: Header, payload: bytes) -> None:
        match header["op"]:
            case "activations" | "ids":
                self._lane("compute").put(lambda: self._arrive(header, payload))
            case "attend":
                self._lane("attend").put(lambda: self._attend_for(name, header, payload))
            case "attended":
                key = header["flight"], header["step"], header["layer"], name
                self._mailbox(key).put(payload)

    # Compute lane

    def _forget(self, flight: int) -> None:
        self._flights.pop(flight, None)
        self._early.pop(flight, None)
        self._kept.pop(flight, None)

    def _pass(self, header: Header) -> None:
        hidden = self._kept.get(header["kept"])
        if hidden is None:
            return  # it has been given up
        onward = {"op": "activations", "flight": header["flight"], "shape": list(hidden.shape)}
        if header["to"] == self._name:
            self._arrive(onward, bytes_of(hidden))
            return
        with suppress(PeerLost):  # the harness knows of the death
            self._to_peer(header["to"], header["path"], hidden, onward)

    def _register(self, work: StageWork, seq: int) -> None:
        if work.flight in self._over:
            return
        with torch.inference_mode():
            parts: list[CacheAttention] = []
            attend = self._routed(work, parts)
            step, sampled = self._runner.step(work.chunks, work.decodes, attend)
        flight = _Flight(work, seq, step, sampled, parts)
        self._flights[work.flight] = flight
        if work.previous is None:
            ids = torch.tensor(work.ids, dtype=torch.int64, device=self._runner.device)
            self._run(flight, ids)
        for header, payload in self._early.pop(work.flight, ()):
            self._arrive(header, payload)

    def _arrive(self, header: Header, payload: bytes) -> None:
        flight = self._flights.get(header["flight"])
        if flight is None:
            if header["flight"] not in self._over:
                self._early.setdefault(header["flight"], []).append((header, payload))
            return
        if header["op"] == "ids":
            # none where the iteration completes no prompt; torch takes no empty buffer
            ids = torch.from_numpy(np.frombuffer(payload, dtype=np.int64).copy())
            self._next(flight, ids.to(self._runner.device))
        else:
            self._run(flight, self._tensor(payload, header["shape"]))

    def _next(self, flight: _Flight, ids: torch.Tensor) -> None:
        """At the first stage, when a step is over: is there another?"""
        work, seq = flight.work, flight.seq
        deadline_s = inf if work.deadline_s is None else work.deadline_s
        over = flight.next_step == work.steps or time.monotonic() >= deadline_s
        if over or seq in self._stopped:
            self._flights.pop(work.flight, None)
            self._harness.send(
                {"op": "answer", "seq": seq, "last": True, "num_steps": flight.next_step}
            )
            return
        self._lane("compute").put(lambda: self._run(flight, ids))

    def _run(self, flight: _Flight, given: torch.Tensor) -> None:
        """One step of this stage; `given`: token ids at the first one, else activations."""
        work, runner = flight.work, self._runner
        begin_s, lo, hi = time.monotonic(), *work.layers
        try:
            with torch.inference_mode():
                step = flight.step
                if flight.next_step:
                    step.positions += 1
                    for part in flight.parts:
                        part.advance()
                self._now = flight.next_step
                flight.next_step += 1
                if work.previous is None:
                    hidden = runner.embed(given, step)
                else:
                    hidden = runner.padded(given)
                hidden = runner.forward(hidden, step, lo, hi)
                num_tokens = len(hidden) - step.num_padding_rows
                layer_s = max(self._layer_s, self._token_s * num_tokens)
                time.sleep(max(0.0, begin_s + layer_s * (hi - lo) - time.monotonic()))
                if work.keeps:
                    self._keep(flight, hidden[:num_tokens])
                elif work.following is None:
                    self._sample(flight, hidden)
                else:
                    self._send_on(flight, hidden[:num_tokens])
        except (PeerLost, _Abandoned):
            self._flights.pop(work.flight, None)  # the harness knows of the death, or gave it up

    def _keep(self, flight: _Flight, hidden: torch.Tensor) -> None:
        number = flight.work.flight
        self._flights.pop(number, None)
        self._kept[number] = hidden
        self._harness.send({"op": "answer", "seq": flight.seq, "last": True, "num_steps": 0})

    def _sample(self, flight: _Flight, hidden: torch.Tensor) -> None:
        work, sampled = flight.work, flight.sampled
        picked = self._runner.pick_rows(hidden, sampled)
        count = len(work.decodes) if sampled is None else len(sampled)
        tokens = picked[:count].tolist()
        self._harness.send(
            {
                "op": "answer", "seq": flight.seq, "last": False,
                "time_s": time.monotonic(), "tokens": tokens,
            }
        )  # fmt: skip
        ids = torch.tensor(tokens, dtype=torch.int64)
        if work.first == self._name:
            self._next(flight, ids.to(self._runner.device))
            return
        self._to_peer(work.first, work.following_path, ids, {"op": "ids", "flight": work.flight})

    def _send_on(self, flight: _Flight, hidden: torch.Tensor) -> None:
        work = flight.work
        assert work.following is not None
        header = {"op": "activations", "flight": work.flight, "shape": list(hidden.shape)}
        if work.following == self._name:
            raise RuntimeError("a stage does not follow itself")
        self._to_peer(work.following, work.following_path, hidden, header)

    def _to_peer(
        self, name: str, path: dict[str, object] | None, tensor: torch.Tensor, header: Header
    ) -> None:
        """Its caller computes on while the message is on the wire."""
        payload = bytes_of(tensor)
        arrival_s = 0.0 if path is None else self._links.book(as_path(path), len(payload))
        if not arrival_s:
            self._mesh.send(name, header, payload)
            return
        self._lane(f"to {name}").put(lambda: self._deliver(name, header, payload, arrival_s))

    def _deliver(self, name: str, header: Header, payload: bytes, at_s: float) -> None:
        time.sleep(max(0.0, at_s - time.monotonic()))
        with suppress(PeerLost):  # the harness knows of the death, and gives the flight up
            self._mesh.send(name, header, payload)

    # Attention

    def _routed(
        self, work: StageWork, own: list[CacheAttention]
    ) -> Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
        """Attention of a stage: page group by page group, each part where its KV is. The parts
        that are this worker's are added to `own`."""
        plans: dict[int, list[tuple[Part, torch.Tensor | None, CacheAttention | None]]] = {}
        for group, parts in work.groups.items():
            plans[group] = []
            for part in parts:
                rows = None if len(parts) == 1 else self._rows(work, part)
                mine = None
                if part.holder == self._name:
                    mine = self._part_attention(work.chunks, work.decodes, part)
                    own.append(mine)
                plans[group].append((part, rows, mine))

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            parts = plans[layer // work.page_layers]
            if len(parts) == 1 and parts[0][2] is not None:
                return parts[0][2](layer, q, k, v)
            return self._joined(work, layer, parts, q, k, v)

        return attend

    def _joined(
        self, work: StageWork, layer: int,
        parts: list[tuple[Part, torch.Tensor | None, CacheAttention | None]],
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """Asks the holders first, attends to its own meanwhile, and puts the results together."""
        step = self._now
        for part, rows, mine in parts:
            if mine is None:
                asked = [x if rows is None else x.index_select(0, rows) for x in (q, k, v)]
                header = {
                    "op": "attend", "flight": work.flight, "step": step, "layer": layer,
                    "group": layer // work.page_layers, "tokens": len(asked[0]),
                }  # fmt: skip
                self._mailbox((work.flight, step, layer, part.holder))
                flat = torch.cat([x.reshape(-1) for x in asked])
                self._to_peer(part.holder, work.holder_paths[part.holder], flat, header)
        out = torch.empty_like(q)
        for part, rows, mine in parts:
            if mine is not None:
                took = [x if rows is None else x.index_select(0, rows) for x in (q, k, v)]
                result = mine(layer, *took)
            else:
                result = self._await((work.flight, step, layer, part.holder), q)
            if rows is None:
                return result
            out.index_copy_(0, rows, result)
        return out

    def _await(self, key: tuple[int, int, int, str], like: torch.Tensor) -> torch.Tensor:
        mailbox = self._mailbox(key)
        if key[0] in self._over or self._mesh.is_lost(key[3]):
            mailbox.put(None)
        payload = mailbox.get()
        with self._lock:
            del self._results[key]
        if payload is None:
            raise _Abandoned
        return self._tensor(payload, [-1, *like.shape[1:]])

    def _mailbox(self, key: tuple[int, int, int, str]) -> queue.SimpleQueue[bytes | None]:
        with self._lock:
            return self._results.setdefault(key, queue.SimpleQueue())

    def _rows(self, work: StageWork, part: Part) -> torch.Tensor:
        """The batch's rows that are `part`'s."""
        starts, at = [], 0
        for _, n, _ in work.chunks:
            starts.append(range(at, at + n))
            at += n
        rows = [row for i in part.chunks for row in starts[i]] + [at + i for i in part.decodes]
        return torch.tensor(rows, dtype=torch.int64, device=self._runner.device)

    def _part_attention(
        self, chunks: list[tuple[int, int, bool]], decodes: list[int], part: Part
    ) -> CacheAttention:
        blocks = iter(part.blocks)
        with torch.inference_mode():
            return cache_attention(
                self._cache,
                [(chunks[i][0], chunks[i][1], next(blocks)) for i in part.chunks],
                [(decodes[i], next(blocks)) for i in part.decodes], self._runner.device,
            )  # fmt: skip

    # Attend lane

    def _register_hold(self, work: HoldWork) -> None:
        if work.flight in self._over:
            return
        mine = self._holds.setdefault(work.flight, {})
        for group, (part,) in work.groups.items():
            attention = self._part_attention(work.chunks, work.decodes, part)
            mine[group] = work, attention, [0]

    def _let_go(self, flight: int) -> None:
        self._holds.pop(flight, None)

    def _attend_for(self, name: str, header: Header, payload: bytes) -> None:
        flight, layer = header["flight"], header["layer"]
        held = self._holds.get(flight, {}).get(header["group"])
        if held is None:
            if flight not in self._over:  # it came before the harness's word: later
                time.sleep(0.0005)
                self._lane("attend").put(lambda: self._attend_for(name, header, payload))
            return
        work, attention, steps = held
        with torch.inference_mode():
            if header["step"] > steps[0]:
                attention.advance()
                steps[0] += 1
            q, k, v = self._qkv(payload, header["tokens"])
            out = attention(layer, q, k, v)
        answer = {"op": "attended", "flight": flight, "step": header["step"], "layer": layer}
        try:
            self._to_peer(name, work.requester_path, out, answer)
        except PeerLost:
            self._holds.pop(flight, None)

    def _qkv(self, payload: bytes, tokens: int) -> list[torch.Tensor]:
        heads, kv_heads, head_dim = self._runner.attention_shape
        flat = self._tensor(payload, [-1])
        sizes = [tokens * n * head_dim for n in (heads, kv_heads, kv_heads)]
        parts = flat.split(sizes)
        return [
            part.view(tokens, n, head_dim)
            for part, n in zip(parts, (heads, kv_heads, kv_heads), strict=True)
        ]

    def _tensor(self, payload: bytes, shape: list[int]) -> torch.Tensor:
        flat = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        return flat.view(self._runner.dtype).view(shape).to(self._runner.device)


def bytes_of(tensor: torch.Tensor) -> bytes:
    content: bytes = tensor.contiguous().cpu().view(torch.uint8).numpy().tobytes()
    return content


def as_path(path: dict[str, object]) -> LinkPath:
    links, rate, latency_s = path["links"], path["bytes_per_s"], path["latency_s"]
    assert isinstance(links, (list, tuple))
    assert rate is None or isinstance(rate, float)
    assert isinstance(latency_s, float)
    return LinkPath(tuple(links), rate, latency_s)
