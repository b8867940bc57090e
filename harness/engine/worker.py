"""The worker process: one model instance on one device, driven over a socket.

Started as `python -m harness.engine.worker <fd>`. It answers one message at a time and
remembers nothing about requests: every `execute` brings token ids, positions and block ids.
While an `execute` runs, messages are looked at between iterations, so a `stop` takes effect at
the next step boundary. Exits when the harness closes the socket or dies.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from math import inf
from typing import Protocol

import torch

from harness.engine.kv_cache import block_bytes, new_cache
from harness.engine.linear import LoadedLayers
from harness.engine.model import Decoder
from harness.engine.runner import Runner
from harness.engine.transport import HEARTBEAT_S, Connection, Header
from harness.engine.warm_up import warm_up
from harness.engine.work import unpack
from harness.model_spec import ModelSpec

PR_SET_PDEATHSIG = 1
BELOW_THE_CLIENT = 5  # niceness: where cores are short, requests are sent and stamped in time


class Serves(Protocol):
    def serve(self) -> None:
        """Until the harness closes the socket: EOFError."""
        ...


class Worker:
    def __init__(self, connection: Connection, setup: Header) -> None:
        self._connection = connection
        torch.set_num_threads(setup["num_threads"])
        spec = ModelSpec(**setup["spec"])
        device = pick_device(setup["device"], setup["index"])
        self._layers = LoadedLayers(spec, device)
        for layer in range(spec.num_layers):
            self._layers.load(layer)
        num_blocks = setup["num_kv_blocks"] or self._fitting_blocks(spec, device, setup)
        cache = new_cache(spec, num_blocks, setup["block_tokens"], device)
        decoder = Decoder(spec, self._layers.ends, device)
        self._runner = Runner(spec, decoder, self._layers.on_device, cache, device)
        warm_up(spec, self._layers.on_device[0], self._layers.ends, device, setup["warm_up_tokens"])
        connection.send(
            {
                "op": "ready",
                "num_kv_blocks": num_blocks,
                "device": device_name(device),
                "num_threads": torch.get_num_threads(),
                "torch": torch.__version__,
            }
        )

    def serve(self) -> None:
        """Until the harness closes the socket: EOFError."""
        while True:
            self._handle(*self._connection.receive())

    def _handle(self, header: Header, payload: bytes) -> None:
        match header["op"]:
            case "ping":
                self._connection.send({"op": "pong", "time_s": time.monotonic()})
            case "execute":
                self._execute(header, payload)
            case "load" | "drop" as op:
                for layer in header["layers"]:
                    (self._layers.load if op == "load" else self._layers.drop)(layer)
                self._connection.send({"op": "answer", "seq": header["seq"], "last": True})
            case "stop":
                pass  # for an execute that had ended by itself

    def _execute(self, header: Header, payload: bytes) -> None:
        """Streams one message per iteration; the one that ends the run says so."""
        chunks, decodes = unpack(header, payload)
        seq, max_steps = header["seq"], header["max_steps"]
        deadline_s = inf if header["deadline_s"] is None else header["deadline_s"]
        for number, tokens in enumerate(self._runner.steps(chunks, decodes, max_steps), start=1):
            now = time.monotonic()
            last = self._stopped(seq) or number == max_steps or now >= deadline_s
            self._connection.send(
                {"op": "answer", "seq": seq, "last": last, "time_s": now, "tokens": tokens}
            )
            if last:
                return

    def _stopped(self, seq: int) -> bool:
        """Handles what has arrived meanwhile; whether that was a `stop` for this execute."""
        stopped = False
        while self._connection.poll(0):
            header, payload = self._connection.receive()
            if header["op"] == "stop":
                stopped |= header["seq"] == seq
            else:
                self._handle(header, payload)
        return stopped

    def _fitting_blocks(self, spec: ModelSpec, device: torch.device, setup: Header) -> int:
        size = block_bytes(spec, setup["block_tokens"])
        memory = int(setup["cpu_kv_bytes"])
        if device.type == "cuda":
            sharing = -(-setup["num_workers"] // torch.cuda.device_count())
            total = torch.cuda.get_device_properties(device).total_memory
            memory = int(total * setup["memory_fraction"] / sharing)
            memory -= torch.cuda.memory_allocated(device)
        if memory < size:
            raise MemoryError(f"no room for a KV block of {size} bytes: {memory} bytes are left")
        return memory // size


def pick_device(device: str, index: int) -> torch.device:
    """Workers take the visible GPUs in turn."""
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError("engine.device=cuda, but torch finds no CUDA device here")
    return torch.device("cuda", index % torch.cuda.device_count())


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _beat(connection: Connection) -> None:
    """Tells the harness that this process runs; kernels leave the GIL to this thread."""
    while True:
        try:
            connection.send({"op": "alive"})
        except OSError:
            return  # the harness is gone; the main thread sees that too
        time.sleep(HEARTBEAT_S)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def failure(error: BaseException) -> Header:
    """What a worker that cannot go on tells the harness."""
    return {"op": "error", "message": f"{type(error).__name__}: {error}"}


def run_worker(make: Callable[[Connection, Header], Serves]) -> None:
    """The whole life of a worker process; `make` brings it up and says that it is ready."""
    _die_with_parent()
    os.nice(BELOW_THE_CLIENT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the harness's to handle
    connection = Connection(socket.socket(fileno=int(sys.argv[1])))
    threading.Thread(target=_beat, args=(connection,), name="heartbeat", daemon=True).start()
    try:
        setup, _ = connection.receive()
        print(f"worker {os.getpid()}: setup {setup}", flush=True)
        make(connection, setup).serve()
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:
        traceback.print_exc()
        connection.send(failure(error))
        sys.exit(1)


if __name__ == "__main__":
    run_worker(Worker)
