"""A port of this host that stands for a port of another node's loopback interface.

A server that is open to nobody but its own host is reached so: the node's end takes connections
that prove the run's token, and connects each to the server. This host's end is a process of its
own, less urgent than the client. It is run as a module:

    python -m harness.engine.relay HOST PORT      (the token, in hexadecimal, is standard input's
                                                   first line)

prints its port, and ends when standard input closes.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from threading import Thread

from harness.engine import tcp
from harness.engine.host import environment
from harness.errors import RunError

LOOPBACK = "127.0.0.1"
PART_BYTES = 1 << 16
BELOW_THE_CLIENT = 5  # niceness
START_S = 20.0  # the longest that the process may take
RETRY_S = 0.1  # after a connection that could not be taken


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that were free a moment ago, all different."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [int(each.getsockname()[1]) for each in sockets]


def node_end(address: str, port: int, token: bytes) -> tcp.Address:
    """Relays to this host's `port` from now on. Where it listens."""

    def to_server(sock: socket.socket) -> socket.socket:
        tcp.proven(sock, token)
        return socket.create_connection((LOOPBACK, port))

    return _listen(address, to_server)


def harness_end(stack: ExitStack, address: tcp.Address, token: bytes) -> int:
    """The port here that stands for what `node_end` relays to, until `stack` ends. RunError: the
    process has ended, or is too slow."""
    words = [sys.executable, "-m", "harness.engine.relay", address[0], str(address[1])]
    process = stack.enter_context(
        subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(1),
            bufsize=0, process_group=0,  # Ctrl-C is for the harness alone
        )
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    stack.callback(process.stdin.close)
    with suppress(BrokenPipeError):  # it has ended
        process.stdin.write(token.hex().encode() + b"\n")
    told, _, _ = select.select([process.stdout], [], [], START_S)
    line = process.stdout.readline() if told else b""
    if not line:
        process.kill()
        how = f"has no port after {START_S:g} s" if not told else "ended before it had a port"
        raise RunError(f"the relay to {address[0]}:{address[1]} {how}")
    return int(line)


def _listen(address: str, opened: Callable[[socket.socket], socket.socket]) -> tcp.Address:
    """Carries bytes between each connection that comes and the one that `opened` makes for it."""
    tcp.raise_file_limit()
    server = socket.create_server((address, 0))

    def accept() -> None:
        while True:
            with ExitStack() as taken:
                try:
                    sock = taken.enter_context(server.accept()[0])
                    Thread(target=_carry, args=(sock, opened), daemon=True).start()
                except (OSError, RuntimeError) as error:  # no more files, or threads
                    print(f"relay: a connection is not taken: {error}", file=sys.stderr, flush=True)
                    time.sleep(RETRY_S)
                else:
                    taken.pop_all()  # it is the thread's

    Thread(target=accept, daemon=True).start()
    found: tcp.Address = server.getsockname()
    return found


def _carry(sock: socket.socket, opened: Callable[[socket.socket], socket.socket]) -> None:
    with sock, suppress(OSError), opened(sock) as other:
        for each in (sock, other):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = Thread(target=_pump, args=(other, sock), daemon=True)
        back.start()
        _pump(sock, other)
        back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Until `source` ends; then both end, in both directions."""
    with suppress(OSError):
        while part := source.recv(PART_BYTES):
            sink.sendall(part)
    for each in (source, sink):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def main(host: str, port: int) -> None:
    os.nice(BELOW_THE_CLIENT)
    token = bytes.fromhex(sys.stdin.readline())
    print(_listen(LOOPBACK, lambda _: tcp.connect((host, port), token))[1], flush=True)
    sys.stdin.read()
    os._exit(0)  # whatever is still being carried


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
