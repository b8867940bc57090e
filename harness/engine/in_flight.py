"""A worker's part in flights: stages it runs.

Nothing here blocks on a flight that has not arrived: a stage's next step is a job of the compute
lane, put there when its activations come. The first stage alone decides whether there is a next
step; the last one samples. Attention of a request whose KV another worker holds runs there
(`routed_attention`, `lent_attention`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf

import numpy as np
import torch

from harness.engine.arrivals import Arrivals
from harness.engine.attention import CacheAttention
from harness.engine.command_loop import CommandLoop
from harness.engine.flight_work import StageWork, stage_work
from harness.engine.given_up import Abandoned, GivenUp
from harness.engine.kv_cache import KvCache
from harness.engine.lent_attention import LentAttention
from harness.engine.mesh import Mesh, PeerLost
from harness.engine.model import Step
from harness.engine.paced_links import PacedLinks
from harness.engine.peers import Peers, bytes_of
from harness.engine.routed_attention import RoutedAttention
from harness.engine.runner import Runner
from harness.engine.transport import Header


@dataclass(slots=True, eq=False)
class _Flight:
    work: StageWork
    seq: int  # of the harness's command
    stop: threading.Event
    step: Step
    sampled: torch.Tensor | None
    parts: list[CacheAttention]  # this worker's own, to be advanced
    next_step: int = 0


class Flights:
    def __init__(
        self, name: str, runner: Runner, cache: KvCache, loop: CommandLoop, mesh: Mesh,
        links: PacedLinks, layers: Mapping[int, object], layer_s: float, token_s: float,
    ) -> None:  # fmt: skip
        self._name, self._runner, self._loop = name, runner, loop
        self._lane, self._layer_s, self._token_s = loop.lane, layer_s, token_s
        self._flights: dict[int, _Flight] = {}
        self._early: dict[int, list[tuple[Header, bytes]]] = {}  # came before the harness's word
        self._over = GivenUp(runner.device)
        self._kept: dict[int, torch.Tensor] = {}  # flight -> activations of its last layer here
        self._step = 0  # the one that runs
        self.arrivals = Arrivals(layers, self._over)
        self._peers = Peers(mesh, links, loop.lane, runner.dtype, runner.device)
        self._routed = RoutedAttention(name, cache, self._peers, runner.device, self._over)
        self._lent = LentAttention(runner, cache, self._peers, loop.lane, self._over)

    # From the harness

    def take_off(self, header: Header, payload: bytes) -> None:
        work, seq = stage_work(header, payload), header["seq"]
        self._loop.begin(seq)
        stop = self._loop.stop_of(seq)
        self._lane("compute").put(lambda: self._register(work, seq, stop))

    def hold(self, header: Header, payload: bytes) -> None:
        self._lent.hold(header, payload)

    def pass_on(self, header: Header, payload: bytes) -> None:
        """What a flight kept here goes to the next one, here or at another worker."""
        lane = "compute" if header["to"] == self._name else "pass"
        self._lane("compute").put(lambda: self._lane(lane).put(lambda: self._pass(header)))

    def abandon(self, header: Header, payload: bytes) -> None:
        flight = header["flight"]
        self._over.add(flight, broken=header["broken"])
        self.arrivals.changed()
        self._routed.give_up(flight)
        self._lane("compute").put(lambda: self._forget(flight))
        self._lent.let_go(flight)

    def on_lost(self, name: str) -> None:
        self._routed.on_lost(name)

    # From peers, on their threads

    def on_peer(self, name: str, header: Header, payload: bytes) -> None:
        match header["op"]:
            case "activations" | "ids":
                self._lane("compute").put(lambda: self._arrive(header, payload))
            case "attend":
                self._lent.asked(name, header, payload)
            case "attended":
                key = header["flight"], header["step"], header["layer"], name
                self._routed.answered(key, payload)

    # Compute lane

    def _forget(self, flight: int) -> None:
        self._land(flight)
        self._early.pop(flight, None)
        self._kept.pop(flight, None)

    def _land(self, flight: int) -> None:
        if (landed := self._flights.pop(flight, None)) is not None:
            self._loop.end(landed.seq)

    def _pass(self, header: Header) -> None:
        hidden = self._kept.get(header["kept"])
        if hidden is None:
            return  # it has been given up
        onward = {"op": "activations", "flight": header["flight"], "shape": list(hidden.shape)}
        if header["to"] == self._name:
            self._arrive(onward, bytes_of(hidden))
            return
        with suppress(PeerLost):  # the harness knows of the death
            self._peers.send(header["to"], header["path"], hidden, onward)

    def _register(self, work: StageWork, seq: int, stop: threading.Event) -> None:
        if work.flight in self._over:
            self._loop.end(seq)
            return
        with torch.inference_mode():
            parts: list[CacheAttention] = []
            attend = self._routed.routed(work, parts, lambda: self._step)
            step, sampled = self._runner.step(work.chunks, work.decodes, attend)
        flight = _Flight(work, seq, stop, step, sampled, parts)
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
            self._run(flight, self._peers.tensor(payload, header["shape"]))

    def _next(self, flight: _Flight, ids: torch.Tensor) -> None:
        """At the first stage, when a step is over: is there another?"""
        work = flight.work
        deadline_s = inf if work.deadline_s is None else work.deadline_s
        over = flight.next_step == work.steps or time.monotonic() >= deadline_s
        if over or flight.stop.is_set():
            self._flights.pop(work.flight, None)
            self._loop.answer(flight.seq, num_steps=flight.next_step)
            return
        self._lane("compute").put(lambda: self._run(flight, ids))

    def _run(self, flight: _Flight, given: torch.Tensor) -> None:
        """One step of this stage; `given`: token ids at the first one, else activations."""
        work = flight.work
        try:
            with torch.inference_mode():
                step = flight.step
                if flight.next_step:
                    step.positions += 1
                    for part in flight.parts:
                        part.advance()
                self._step = flight.next_step
                flight.next_step += 1
                hidden = self._through(work, given, step)
                num_tokens = len(hidden) - step.num_padding_rows
                if work.keeps:
                    self._keep(flight, hidden[:num_tokens])
                elif work.following is None:
                    self._sample(flight, hidden)
                else:
                    self._send_on(flight, hidden[:num_tokens])
        except (PeerLost, Abandoned):
            self._land(work.flight)  # the harness knows of the death, or gave it up

    def _through(self, work: StageWork, given: torch.Tensor, step: Step) -> torch.Tensor:
        """The stage's layers, each at its pace; those that are on their way are waited for."""
        runner, (lo, hi) = self._runner, work.layers
        over_s, hidden = time.monotonic(), given
        layer_s = max(self._layer_s, self._token_s * len(given))
        while lo < hi:
            asked_s = time.monotonic()
            here = self.arrivals.run(lo, hi, work.flight)
            over_s += time.monotonic() - asked_s + layer_s * len(here)
            if lo == work.layers[0]:
                first = work.previous is None  # its table comes with the layer
                hidden = runner.embed(given, step) if first else runner.padded(given)
            hidden, lo = runner.forward(hidden, step, lo, here.stop), here.stop
            time.sleep(max(0.0, over_s - time.monotonic()))
        return hidden

    def _keep(self, flight: _Flight, hidden: torch.Tensor) -> None:
        number = flight.work.flight
        self._flights.pop(number, None)
        self._kept[number] = hidden
        self._loop.answer(flight.seq, num_steps=0)

    def _sample(self, flight: _Flight, hidden: torch.Tensor) -> None:
        work, sampled = flight.work, flight.sampled
        picked = self._runner.pick_rows(hidden, sampled)
        count = len(work.decodes) if sampled is None else len(sampled)
        tokens = picked[:count].tolist()
        self._loop.answer(flight.seq, last=False, time_s=time.monotonic(), tokens=tokens)
        ids = torch.tensor(tokens, dtype=torch.int64)
        if work.first == self._name:
            self._next(flight, ids.to(self._runner.device))
            return
        header = {"op": "ids", "flight": work.flight}
        self._peers.send(work.first, work.following_path, ids, header)

    def _send_on(self, flight: _Flight, hidden: torch.Tensor) -> None:
        work = flight.work
        assert work.following is not None
        header = {"op": "activations", "flight": work.flight, "shape": list(hidden.shape)}
        if work.following == self._name:
            raise RuntimeError("a stage does not follow itself")
        self._peers.send(work.following, work.following_path, hidden, header)
