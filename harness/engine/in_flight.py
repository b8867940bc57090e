"""A worker's part in batches in flight: the stages that it runs of them.

Nothing here blocks on a batch that has not arrived: a stage's next step is a job of the compute
stream, put there when its activations come. The first stage alone decides whether there is a next
step; the last one samples. Attention of a request whose KV another worker holds runs there
(`routed_attention`, `lent_attention`).
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from harness.engine.command_loop import CommandLoop
from harness.engine.config import TorchElasticConfig
from harness.engine.cuda import finish
from harness.engine.given_up import Abandoned, Arrivals, GivenUp
from harness.engine.kernels import BatchAttention
from harness.engine.mesh import OnMessage, Peers, bytes_of
from harness.engine.model import Step
from harness.engine.paced_links import LinkPath
from harness.engine.padding import padded
from harness.engine.routed_attention import LentAttention, RoutedAttention
from harness.engine.runner import Runner, num_sampled
from harness.engine.transport import Header, PeerLost, of_kind
from harness.engine.work import StageWork


@dataclass(slots=True, eq=False)
class _Stage:
    """This worker's stage of one batch."""

    work: StageWork
    seq: int  # of the harness's command
    stop: threading.Event
    step: Step
    sampled: torch.Tensor | None
    parts: list[BatchAttention]  # this worker's own, to be advanced
    next_step: int = 0


class InFlight:
    """Runs this worker's stages of the batches in flight. By `config` a layer's computation takes
    at least so long, so that stages on few cores show timing, not only order."""

    def __init__(
        self, name: str, runner: Runner, config: TorchElasticConfig, loop: CommandLoop, peers: Peers
    ) -> None:
        self._name, self._runner, self._config, self._loop = name, runner, config, loop
        self._compute = loop.stream("compute")
        self._stages: dict[int, _Stage] = {}  # by the batch's number
        self._early: dict[int, list[tuple[Header, bytes]]] = {}  # came before the harness's word
        self._over = GivenUp(runner.device)
        self._kept: dict[int, torch.Tensor] = {}  # batch -> activations of its last layer here
        self._step = 0  # the one that runs
        self._pace = {"paced_s": 0.0, "behind_s": 0.0}  # of the last step here
        self.arrivals = Arrivals(runner.layers, self._over)
        self._peers = peers
        self._routed = RoutedAttention(name, runner, peers, self._over)
        self._lent = LentAttention(runner, peers, loop.stream("attend"), self._over)
        self.at_once = {
            "stage": self._begin, "hold": self._lent.hold, "pass": self._pass_on,
            "abandon": self._abandon,
        }  # fmt: skip
        self.from_peers: dict[str, OnMessage] = {
            "activations": self._on_given, "ids": self._on_given,
            "attend": self._lent.asked, "attended": self._routed.answered,
        }  # fmt: skip
        self.on_lost = self._routed.on_lost

    # From the harness

    def _begin(self, header: Header) -> None:
        work, seq = of_kind(StageWork, header["work"]), header["seq"]
        stop = self._loop.begin(seq)
        self._compute.put(lambda: self._register(work, seq, stop))

    def _pass_on(self, header: Header) -> None:
        """What a batch kept here goes to its next run, here or at another worker."""
        stream = self._loop.stream("compute" if header["to"] == self._name else "pass")
        self._compute.put(lambda: stream.put(lambda: self._pass(header)))

    def _abandon(self, header: Header) -> None:
        batch = header["batch"]
        self._over.add(batch, broken=header["broken"])
        self.arrivals.changed()
        self._routed.give_up(batch)
        self._compute.put(lambda: self._forget(batch))
        self._lent.let_go(batch)

    # From peers, on their threads

    def _on_given(self, name: str, header: Header, payload: bytearray) -> None:
        self._compute.put(lambda: self._arrive(header, bytes(payload)))

    # Compute stream

    def _forget(self, batch: int) -> None:
        self._end(batch)
        self._early.pop(batch, None)
        self._kept.pop(batch, None)

    def _end(self, batch: int, **answer: Any) -> None:
        """The stage is over; without an `answer` the harness knows."""
        stage = self._stages.pop(batch, None)
        if stage is not None and answer:
            self._loop.answer(stage.seq, **answer)
        elif stage is not None:
            self._loop.end(stage.seq)

    def _pass(self, header: Header) -> None:
        hidden = self._kept.get(header["kept"])
        if hidden is None:
            return  # it has been given up
        onward = {"op": "activations", "batch": header["batch"], "shape": hidden.shape}
        if header["to"] == self._name:
            self._arrive(onward, bytes_of(hidden))
            return
        with suppress(PeerLost):  # the harness knows of the death
            path = of_kind(LinkPath, header["path"])
            self._peers.send(header["to"], path, hidden, onward)

    def _register(self, work: StageWork, seq: int, stop: threading.Event) -> None:
        if work.number in self._over:
            self._loop.end(seq)
            return
        with torch.inference_mode():
            parts: list[BatchAttention] = []
            attend = self._routed.routed(work, parts, lambda: self._step)
            step, sampled = self._runner.step(work.batch, attend)
        stage = _Stage(work, seq, stop, step, sampled, parts)
        self._stages[work.number] = stage
        if work.previous is None:
            ids = torch.tensor(work.batch.ids, dtype=torch.int64, device=self._runner.device)
            self._run(stage, ids)
        for header, payload in self._early.pop(work.number, ()):
            self._arrive(header, payload)

    def _arrive(self, header: Header, payload: bytes) -> None:
        stage = self._stages.get(header["batch"])
        if stage is None:
            if header["batch"] not in self._over:
                self._early.setdefault(header["batch"], []).append((header, payload))
            return
        if header["op"] == "ids":
            # none where the iteration completes no prompt; torch takes no empty buffer
            ids = torch.from_numpy(np.frombuffer(payload, dtype=np.int64).copy())
            self._next(stage, ids.to(self._runner.device))
        else:
            self._run(stage, self._peers.tensor(payload, header["shape"]))

    def _next(self, stage: _Stage, ids: torch.Tensor) -> None:
        """Starts another step, or ends the stage, when a step is over at the first stage."""
        work = stage.work
        late = work.deadline_s is not None and time.monotonic() >= work.deadline_s
        if late or stage.next_step == work.steps or stage.stop.is_set():
            self._end(work.number, num_steps=stage.next_step)
        else:
            self._compute.put(lambda: self._run(stage, ids))

    def _run(self, stage: _Stage, given: torch.Tensor) -> None:
        """One step of this stage; `given`: token ids at the first one, else activations."""
        work, step = stage.work, stage.step
        try:
            with torch.inference_mode():
                if stage.next_step:
                    step.positions += 1
                    for part in stage.parts:
                        part.advance()
                self._step = stage.next_step
                stage.next_step += 1
                hidden = self._through(work, given, step)
                rows = hidden[: len(hidden) - step.num_padding_rows]
                if work.keeps:
                    finish(self._runner.device)  # another stream passes them on, or moves the KV
                    self._kept[work.number] = rows
                    self._end(work.number, num_steps=0)
                elif work.following is None:
                    self._sample(stage, hidden)
                else:
                    header = {"op": "activations", "batch": work.number, "shape": rows.shape}
                    self._peers.send(work.following, work.following_path, rows, header)
        except (PeerLost, Abandoned):
            self._end(work.number)  # the harness knows of the death, or gave it up

    def _through(self, work: StageWork, given: torch.Tensor, step: Step) -> torch.Tensor:
        """The stage's layers, each at its pace; those that are on their way are waited for."""
        runner, (lo, hi) = self._runner, (work.layers.start, work.layers.stop)
        over_s, ahead_s, hidden = time.monotonic(), 0.0, given
        layer_s = max(self._config.layer_s, self._config.token_s * len(given))
        while lo < hi:
            asked_s = time.monotonic()
            here = self.arrivals.run(lo, hi, work.number)
            over_s += time.monotonic() - asked_s + layer_s * len(here)
            if lo == work.layers.start:
                first = work.previous is None  # its table comes with the layer
                hidden = runner.embed(given, step) if first else padded(given)
            hidden, lo = runner.forward(hidden, step, lo, here.stop), here.stop
            ahead_s = over_s - time.monotonic()
            time.sleep(max(0.0, ahead_s))
        self._pace = {"paced_s": layer_s * len(work.layers), "behind_s": max(0.0, -ahead_s)}
        return hidden

    def _sample(self, stage: _Stage, hidden: torch.Tensor) -> None:
        work = stage.work
        picked = self._runner.picked(hidden, stage.sampled)[: num_sampled(work.batch)]
        finish(self._runner.device)  # as `Runner.steps`
        tokens, now_s = picked.tolist(), time.monotonic()
        self._loop.answer(stage.seq, last=False, time_s=now_s, tokens=tokens, **self._pace)
        ids = torch.tensor(tokens, dtype=torch.int64)
        if work.first == self._name:
            self._next(stage, ids.to(self._runner.device))
        else:
            header = {"op": "ids", "batch": work.number}
            self._peers.send(work.first, work.following_path, ids, header)
