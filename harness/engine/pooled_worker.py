"""The worker process of a pooled instance: models take turns on one device.

Started as `python -m harness.engine.pooled_worker <fd>`. Batches, loads and KV copies in either
direction each have a lane, a thread that works beside the others; the main thread hands out what
the harness asks for. Which model lies where, and which block is whose, it is told each time.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import traceback
from array import array
from collections.abc import Callable
from contextlib import suppress
from math import inf

import torch

from harness.engine.block_tables import FIRST_BLOCK
from harness.engine.kv_memory import Blocks, KvMemory
from harness.engine.lane import Lane
from harness.engine.layout import model_in, write_model
from harness.engine.link import Link
from harness.engine.loader import Source, WeightsLoader, finish_copies
from harness.engine.model import Decoder
from harness.engine.runner import Runner
from harness.engine.speed import timed
from harness.engine.transport import Connection, Header
from harness.engine.work import ChunkWork, unpack
from harness.engine.worker import device_name, failure, pick_device, run_worker
from harness.model_spec import ModelSpec

Work = Callable[[Header, bytes], None]


class PooledWorker:
    def __init__(self, connection: Connection, setup: Header) -> None:
        self._connection = connection
        torch.set_num_threads(setup["num_threads"])
        self._device = device = pick_device(setup["device"], setup["index"])
        self._specs = {name: ModelSpec(**spec) for name, spec in setup["models"].items()}
        for name, files in setup["write"].items():
            write_model(self._specs[name], files)
        # Written to, so that its pages are there before the first load.
        self._weights = torch.full((setup["weights_bytes"],), 0, dtype=torch.uint8, device=device)
        self._kv = KvMemory(
            setup["kv_bytes"], setup["slab_bytes"], setup["pad_bytes"],
            setup["kv_file"], setup["host_kv_bytes"], device,
        )  # fmt: skip
        self._block_tokens = setup["block_tokens"]
        rate = setup["link_bytes_per_s"]
        self._to_device, self._to_host = Link(rate), Link(rate)
        self._loader = WeightsLoader(self._weights, setup["stage_buffer_bytes"], self._to_device)
        self._at: dict[str, int] = {}  # model -> where its weights are
        self._runners: dict[tuple[str, int], Runner] = {}  # model and place -> what runs it there
        for name in self._specs:
            self._warm_up(self._runner(name, 0))
        speeds = self._speeds() if setup["time"] else {}
        self._stops: dict[int, threading.Event] = {}  # seq -> of the command in flight
        self._work = self._lanes()
        connection.send(
            {
                "op": "ready",
                "device": device_name(device),
                "num_threads": torch.get_num_threads(),
                "torch": torch.__version__,
                "speeds": speeds,
            }
        )

    def serve(self) -> None:
        """Until the harness closes the socket: EOFError."""
        while True:
            self._dispatch(*self._connection.receive())

    def _dispatch(self, header: Header, payload: bytes) -> None:
        match header["op"]:
            case "ping":
                self._connection.send({"op": "pong", "time_s": time.monotonic()})
            case "stop":
                if (stop := self._stops.get(header["seq"])) is not None:  # else it has ended
                    stop.set()
            case op:
                self._stops[header["seq"]] = threading.Event()
                lane, work = self._work[op]
                lane.put(lambda: work(header, payload))

    def _lanes(self) -> dict[str, tuple[Lane, Work]]:
        """Who does what; what shares a lane waits for one another."""
        compute, load, copy_out, copy_in = (
            Lane(name, self._device, self._fail)
            for name in ("compute", "load", "copy out", "copy in")
        )
        return {
            "execute": (compute, self._execute),
            "relocate": (compute, self._relocate),
            "collect": (compute, self._collect),
            "load": (load, self._load),
            "copy_out": (copy_out, self._copy_out),
            "copy_in": (copy_in, self._copy_in),
        }

    def _execute(self, header: Header, payload: bytes) -> None:
        """Streams one message per iteration; the one that ends the run says so."""
        chunks, decodes = unpack(header, payload)
        seq, max_steps = header["seq"], header["max_steps"]
        deadline_s = inf if header["deadline_s"] is None else header["deadline_s"]
        stop = self._stops[seq]
        runner = self._runner(header["model"], self._at[header["model"]])
        for number, tokens in enumerate(runner.steps(chunks, decodes, max_steps), start=1):
            now = time.monotonic()
            last = stop.is_set() or number == max_steps or now >= deadline_s
            self._answer(header, last=last, time_s=now, tokens=tokens)
            if last:
                return

    def _load(self, header: Header, payload: bytes) -> None:
        model, at_bytes = header["model"], header["at_bytes"]
        spec, source = self._specs[model], Source(header["file"], header["fill"])
        complete = True
        if header["staged"]:
            stop = self._stops[header["seq"]]
            complete = self._loader.staged(source, spec.weight_bytes, at_bytes, stop)
        else:
            self._loader.by_parameter(source, spec, at_bytes)
        self._at[model] = at_bytes
        self._answer(header, complete=complete)

    def _relocate(self, header: Header, payload: bytes) -> None:
        num_bytes = self._specs[header["model"]].weight_bytes
        self._loader.move(num_bytes, header["from_bytes"], header["to_bytes"])
        self._at[header["model"]] = header["to_bytes"]
        self._answer(header)

    def _copy_out(self, header: Header, payload: bytes) -> None:
        self._kv.copy_out(_blocks(header, payload), self._to_host)
        self._answer(header)

    def _copy_in(self, header: Header, payload: bytes) -> None:
        self._kv.copy_in(_blocks(header, payload), self._to_device)
        self._answer(header)

    def _collect(self, header: Header, payload: bytes) -> None:
        """What has to precede another model's tensors in a tensor library's own memory."""
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        self._answer(header)

    def _answer(self, header: Header, *, last: bool = True, **values: object) -> None:
        if last:
            del self._stops[header["seq"]]
        self._connection.send({"op": "answer", "seq": header["seq"], "last": last, **values})

    def _runner(self, name: str, at_bytes: int) -> Runner:
        """Runs the model whose weights lie at `at_bytes`, once they do. Made only once."""
        if (name, at_bytes) not in self._runners:
            spec = self._specs[name]
            ends, layers = model_in(self._weights, spec, at_bytes)
            cache = self._kv.cache(spec, self._block_tokens)
            decoder = Decoder(spec, ends, self._device)
            self._runners[name, at_bytes] = Runner(spec, decoder, layers, cache, self._device)
        return self._runners[name, at_bytes]

    def _warm_up(self, runner: Runner) -> None:
        """One iteration without weights, so that libraries load before the first request comes."""
        for _ in runner.steps([ChunkWork([0], 0, True, [FIRST_BLOCK])], [], 1):
            finish_copies(self._weights)

    def _speeds(self) -> dict[str, dict[str, float]]:
        """Of each architecture, without weights."""
        firsts = {spec.name: name for name, spec in reversed(self._specs.items())}
        speeds = {}
        for architecture, name in firsts.items():
            spec = self._specs[name]
            num_blocks = self._kv.cache(spec, self._block_tokens).num_blocks
            speeds[architecture] = timed(
                self._runner(name, 0), spec, num_blocks, self._block_tokens
            )
        return speeds

    def _fail(self, error: BaseException) -> None:
        traceback.print_exception(error)
        with suppress(OSError):
            self._connection.send(failure(error))
        os._exit(1)  # a thread cannot raise for the others


def _blocks(header: Header, payload: bytes) -> Blocks:
    offsets = array("q", payload)
    half = len(offsets) // 2
    return Blocks(header["block_bytes"], offsets[:half], offsets[half:])


if __name__ == "__main__":
    run_worker(PooledWorker)
