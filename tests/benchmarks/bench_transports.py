"""What connects two workers: half a round trip of 4 KiB, and the throughput of 64 MiB.

    python -m tests.benchmarks.bench_transports [--rounds 200]

Two processes of this host. Socket pair and TCP carry messages of the harness, as workers send them;
gloo carries torch's tensors, as torch.distributed would. P50 over the rounds.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import tempfile
from collections.abc import Callable
from statistics import median
from time import perf_counter

from harness.engine import tcp
from harness.engine.launcher import Pair
from harness.engine.transport import Connection

SMALL_BYTES, LARGE_BYTES = 4096, 64 * 2**20
Exchange = Callable[[int, int], None]  # so many bytes there, so many back


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
        import torch
        from torch import distributed

        rank = int(child == 0)
        distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
        )

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


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.benchmarks.bench_transports")
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    token = secrets.token_bytes(tcp.TOKEN_BYTES)
    print(f"{'transport':>12}{'4 KiB µs':>10}{'64 MiB GB/s':>13}")
    for name, found in (
        ("socket pair", lambda: over_sockets(socket.socketpair, rounds)),
        ("TCP", lambda: over_sockets(lambda: tcp.pair(token), rounds)),
        ("gloo", lambda: over_gloo(rounds)),
    ):
        latency_us, rate = found()
        print(f"{name:>12}{latency_us:>10.1f}{rate:>13.2f}", flush=True)


if __name__ == "__main__":
    main()
