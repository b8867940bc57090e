"""What connects two workers: half a round trip of 4 KiB, and the throughput of 64 MiB.

    python -m tests.benchmarks.bench_transports [--rounds 200] [--json FILE]

Two processes of this host, so what a network adds is not in it. Socket pair and TCP carry messages
of the harness, as workers send them. gloo carries torch's tensors, as torch.distributed does. NIXL,
where it is installed (pip install nixl), writes from memory to memory by UCX, registered once; both
ends poll without a pause, so it wants a core for each. P50 over the rounds.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import socket
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import distributed

from harness.engine import tcp
from harness.engine.transport import Connection
from harness.files import write_json
from harness.records.manifest import git_revision, machine, versions

SMALL_BYTES, LARGE_BYTES = 4096, 64 * 2**20
WITHIN_S = 110  # then SIGALRM ends it: no measurement hangs
Exchange = Callable[[int, int], None]  # so many bytes there, so many back
Pair = tuple[socket.socket, socket.socket]


def timed(exchange: Exchange, rounds: int) -> tuple[float, float]:
    """Half a round trip in µs, and GB/s."""

    def p50_s(there: int, back: int, times: int) -> float:
        found = []
        for _ in range(times + 1):  # the first is not counted
            begin_s = perf_counter()
            exchange(there, back)
            found.append(perf_counter() - begin_s)
        return median(found[1:])

    latency_s = p50_s(SMALL_BYTES, SMALL_BYTES, rounds) / 2
    return latency_s * 1e6, LARGE_BYTES / p50_s(LARGE_BYTES, 1, max(3, rounds // 20)) / 1e9


def tcp_pair() -> Pair:
    """As two workers of different nodes are connected, on the loopback interface."""
    token = secrets.token_bytes(tcp.TOKEN_BYTES)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:
        accepting = thread.submit(tcp.accept, server, token)
        return tcp.connect(server.getsockname(), token), accepting.result()


def over_sockets(pair: Callable[[], Pair], rounds: int) -> tuple[float, float]:
    ours, theirs = pair()
    child = os.fork()
    if child == 0:
        ours.close()
        peer = Connection(theirs)
        try:
            while True:
                header, _ = peer.receive()
                peer.send({"op": "bytes"}, bytes(header["back"]))
        except EOFError:
            os._exit(0)
    theirs.close()
    connection = Connection(ours)

    def exchange(there: int, back: int) -> None:
        connection.send({"op": "bytes", "at": 0, "back": back}, bytes(there))
        connection.receive()

    found = timed(exchange, rounds)
    connection.close()
    os.waitpid(child, 0)
    return found


def over_gloo(rounds: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        rank = int(child == 0)
        distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2,
            timeout=timedelta(seconds=30),
        )  # fmt: skip

        def exchange(there: int, back: int) -> None:
            sizes = torch.tensor([there, back])
            distributed.send(sizes, 1)
            distributed.send(torch.zeros(there, dtype=torch.uint8), 1)
            distributed.recv(torch.zeros(back, dtype=torch.uint8), 1)

        if rank == 1:
            sizes = torch.zeros(2, dtype=torch.int64)
            while distributed.recv(sizes, 0) == 0 and sizes[0]:
                distributed.recv(torch.zeros(int(sizes[0]), dtype=torch.uint8), 0)
                distributed.send(torch.zeros(int(sizes[1]), dtype=torch.uint8), 0)
            os._exit(0)
        found = timed(exchange, rounds)
        distributed.send(torch.tensor([0, 0]), 1)
        os.waitpid(child, 0)
        distributed.destroy_process_group()
        return found


def over_nixl(rounds: int) -> tuple[float, float]:
    ours, theirs = socket.socketpair()
    child = os.fork()
    from nixl._api import nixl_agent, nixl_agent_config

    agent = nixl_agent("child" if child == 0 else "parent", nixl_agent_config(backends=["UCX"]))
    memory = torch.zeros(LARGE_BYTES, dtype=torch.uint8)
    agent.register_memory(memory)
    side = Connection(theirs if child == 0 else ours)
    side.send({"at": memory.data_ptr()}, agent.get_agent_metadata())
    other, metadata = side.receive()
    name = agent.add_remote_agent(bytes(metadata))

    def write(size: int, notice: bytes) -> None:
        places = [
            agent.get_xfer_descs([(at, size, 0)], "DRAM") for at in (memory.data_ptr(), other["at"])
        ]
        handle = agent.initialize_xfer("WRITE", *places, name, notice)
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        assert state == "DONE", state
        agent.release_xfer_handle(handle)

    def notice() -> bytes:
        while not (found := agent.get_new_notifs()):
            pass
        ((first, *_),) = found.values()
        return bytes(first)

    def exchange(there: int, back: int) -> None:
        write(there, str(back).encode())
        notice()

    if child == 0:
        while back := int(notice()):
            write(back, b"0")
        os._exit(0)
    found = timed(exchange, rounds)
    write(1, b"0")
    os.waitpid(child, 0)
    return found


def others() -> dict[str, str]:
    """Versions of what is no part of a run. gloo has none of its own: torch brings it."""
    found = {name: metadata.version(name) for name in ("nixl", "ray") if find_spec(name)}
    return found | {"gloo": f"torch {torch.__version__}"}


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.benchmarks.bench_transports")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", type=Path, help="where to write the results")
    arguments = parser.parse_args()
    signal.alarm(WITHIN_S)
    rounds, rows = arguments.rounds, []
    print(f"{'transport':>12}{'4 KiB µs':>10}{'64 MiB GB/s':>13}")
    found_by = {
        "socket pair": lambda: over_sockets(socket.socketpair, rounds),
        "TCP": lambda: over_sockets(tcp_pair, rounds),
        "gloo": lambda: over_gloo(rounds),
        "NIXL": lambda: over_nixl(rounds),
    }
    if find_spec("nixl") is None:
        del found_by["NIXL"]
        print("without NIXL, which is not installed")
    for name, found in found_by.items():
        latency_us, rate = found()
        rows.append({"transport": name, "latency_4kib_us": latency_us, "rate_64mib_gb_s": rate})
        print(f"{name:>12}{latency_us:>10.1f}{rate:>13.2f}", flush=True)
    if arguments.json:
        about = {
            "date": date.today().isoformat(), "machine": machine(), "git": git_revision(),
            "versions": versions() | others(), "rounds": rounds,
        }  # fmt: skip
        write_json(arguments.json, about | {"rows": rows})


if __name__ == "__main__":
    main()
