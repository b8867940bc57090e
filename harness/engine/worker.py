"""The worker process: one device, driven over a socket.

Started as `python -m harness.engine.worker <fd> <JSON>`: its socket to the harness, and the numbers
of what else it inherits (`Host.start`). The first message, `setup`, says what is to lie on the
device: one model for good, models that take turns, or layers that come and go. It remembers nothing
about requests: every command brings token ids, positions, block ids. Exits when the harness closes
the socket or dies.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback

import torch

from harness.engine.command_loop import CommandLoop, failure
from harness.engine.config import TorchConfig
from harness.engine.cuda import device_name, finish_all, pick_device
from harness.engine.dedicated_memory import DedicatedMemory
from harness.engine.elastic_memory import ElasticMemory
from harness.engine.node_files import files_of
from harness.engine.pooled_memory import PooledMemory
from harness.engine.transport import HEARTBEAT_S, Connection, Header, of_kind

PR_SET_PDEATHSIG = 1
# Of malloc.h: (option, value). One heap for all threads; nothing is given back; 32 MiB is the most
# that glibc takes as the size from which memory is mapped for a single tensor.
MALLOC = ((-8, 1), (-1, 2**31 - 1), (-3, 32 * 2**20))
BELOW_THE_CLIENT = 5  # niceness: where cores are short, requests are sent and stamped in time


def contents(
    loop: CommandLoop, setup: Header, given: Header
) -> DedicatedMemory | PooledMemory | ElasticMemory:
    if setup["memory"] == "dedicated":
        return DedicatedMemory(loop, setup, given["files"])
    files = files_of(given["files"], given["far"])
    if setup["memory"] == "pooled":
        return PooledMemory(loop, setup, files)
    return ElasticMemory(loop, setup, files, socket.socket(fileno=given["invitations"]))


def _beat(connection: Connection) -> None:
    """Tells the harness that this process runs; kernels leave the GIL to this thread."""
    while True:
        try:
            connection.send({"op": "alive"})
        except OSError:
            return  # the harness is gone; the main thread sees that too
        time.sleep(HEARTBEAT_S)


def _die_with(parent: int) -> None:
    """Has the kernel kill this process with its parent, which may have died meanwhile: importing
    torch takes seconds."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(f"worker {os.getpid()}: what started it has ended")


def keep_freed_memory() -> None:
    """Has glibc keep what is freed for the next iteration. It gives large pieces back to the kernel
    at once, by default, and an iteration then spends up to two thirds of its time on page faults,
    more or less of it by what happens to lie at the end of the heap."""
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):
        for option, value in MALLOC:
            ctypes.CDLL(None).mallopt(option, value)


def main() -> None:
    given = json.loads(sys.argv[2])
    _die_with(given["parent"])
    keep_freed_memory()
    os.nice(BELOW_THE_CLIENT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the harness's to handle
    connection = Connection(socket.socket(fileno=int(sys.argv[1])))
    threading.Thread(target=_beat, args=(connection,), name="heartbeat", daemon=True).start()
    try:
        setup, _ = connection.receive()
        print(f"worker {os.getpid()}: setup {setup}", flush=True)
        torch.set_num_threads(setup["num_threads"])
        setup["config"] = of_kind(TorchConfig, setup["config"])
        device = pick_device(setup["config"].device, setup["index"])
        loop = CommandLoop(connection, device)
        here = contents(loop, setup, given)
        finish_all(device)  # streams have CUDA streams of their own
        connection.send(
            {
                "op": "ready",
                "device": device_name(device),
                "num_threads": torch.get_num_threads(),
                "torch": str(torch.__version__),  # a subclass is none of JSON
                **here.ready,
            }
        )
        loop.serve(here.in_streams, here.at_once)
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:
        traceback.print_exc()
        connection.send(failure(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
