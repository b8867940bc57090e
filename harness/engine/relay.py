"""A port of this host that stands for a port of another node's loopback interface.

A server that is open to nobody but its own host is reached so: the node's end takes connections
that prove the run's token, and connects each to the server. This host's end is a process of its
own, which takes no time from the client. It is run as a module:

    python -m harness.engine.relay HOST PORT      (the token, in hexadecimal, is standard input's
                                                   first line)

prints its port, and ends when standard input closes.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from threading import Thread

from harness.engine import tcp
from harness.engine.host import environment

LOOPBACK = "127.0.0.1"
PART_BYTES = 1 << 16


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
    """The port here that stands for what `node_end` relays to, until `stack` ends."""
    words = [sys.executable, "-m", "harness.engine.relay", address[0], str(address[1])]
    process = stack.enter_context(
        subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(1),
            process_group=0,  # Ctrl-C is for the harness alone
        )
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    stack.callback(process.stdin.close)
    process.stdin.write(token.hex().encode() + b"\n")
    process.stdin.flush()
    return int(process.stdout.readline())


def _listen(address: str, opened: Callable[[socket.socket], socket.socket]) -> tcp.Address:
    """Carries bytes between each connection that comes and the one that `opened` makes for it."""
    server = socket.create_server((address, 0))

    def accept() -> None:
        while True:
            sock, _ = server.accept()
            Thread(target=_carry, args=(sock, opened), daemon=True).start()

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
    token = bytes.fromhex(sys.stdin.readline())
    print(_listen(LOOPBACK, lambda _: tcp.connect((host, port), token))[1], flush=True)
    sys.stdin.read()
    os._exit(0)  # whatever is still being carried


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
