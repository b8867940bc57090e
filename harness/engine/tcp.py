"""Connections over TCP, between two ends that have shown each other that they know the run's token.

Before it reads anything else, each end sends a nonce and answers the other one's with an HMAC under
the token, in which the two roles differ: an answer cannot be sent back. The token keeps strangers
out; bytes are not encrypted. A port is open for one connection, and for `WITHIN_S` at most;
that of a relay (`harness.engine.relay`) for the whole run, and for any number that prove the token.
"""

from __future__ import annotations

import hmac
import resource
import secrets
import socket
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread

Address = tuple[str, int]

TOKEN_BYTES = NONCE_BYTES = 32
WITHIN_S = 5.0
DEAD_AFTER_MS = 5000  # without an answer to what was sent, or to a probe
KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 3))


def raise_file_limit() -> None:
    """Open connections are bounded by the system's hard limit, not by the usual soft 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Refused(ConnectionError):
    """The other end does not know the token, or is not there."""


def connect(address: Address, token: bytes) -> socket.socket:
    """Refused: nobody is there who knows `token`."""
    try:
        sock = socket.create_connection(address, WITHIN_S)
    except OSError as error:
        raise Refused(f"{address[0]}:{address[1]} cannot be reached: {error}") from None
    return _proven(sock, token, b"connects", b"accepts")


def accept(server: socket.socket, token: bytes) -> socket.socket:
    """The first to connect that knows `token`; others neither hold it up nor are read further.
    Refused: none has within `WITHIN_S`."""
    found: SimpleQueue[socket.socket] = SimpleQueue()
    refused: list[str] = []

    def judge(sock: socket.socket, host: str) -> None:
        try:
            found.put(proven(sock, token))
        except Refused as error:
            refused.append(f"{host} ({error})")
        else:
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # nobody else is waited for

    until_s = time.monotonic() + WITHIN_S
    with suppress(OSError):  # the time is over, or there is one
        while (left_s := until_s - time.monotonic()) > 0:
            server.settimeout(left_s)
            sock, peer = server.accept()
            Thread(target=judge, args=(sock, peer[0]), daemon=True).start()
    try:
        return found.get_nowait()
    except Empty:
        told = f"; refused: {', '.join(refused)}" if refused else ""
        raise Refused(f"nobody with the run's token connected in {WITHIN_S:g} s{told}") from None


def proven(sock: socket.socket, token: bytes) -> socket.socket:
    """A connection that was accepted, once its other end has proved itself. Refused, and closed:
    it has not."""
    return _proven(sock, token, b"accepts", b"connects")


def _proven(sock: socket.socket, token: bytes, ours: bytes, theirs: bytes) -> socket.socket:
    """`sock`, once its other end has proved itself; else it is closed. `ours`, `theirs`: roles."""
    until_s = time.monotonic() + WITHIN_S
    try:
        nonce = secrets.token_bytes(NONCE_BYTES)
        sock.settimeout(WITHIN_S)
        sock.sendall(nonce)
        other = _exactly(sock, NONCE_BYTES, until_s)
        sock.sendall(_answer(token, ours, nonce, other))
        expected = _answer(token, theirs, other, nonce)
        if not hmac.compare_digest(_exactly(sock, len(expected), until_s), expected):
            raise Refused("wrong token")
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (*KEEP_ALIVE, (socket.TCP_USER_TIMEOUT, DEAD_AFTER_MS)):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    except OSError as error:
        sock.close()
        told = "no answer" if isinstance(error, TimeoutError) else str(error)
        raise error if isinstance(error, Refused) else Refused(told) from None
    return sock


def _answer(token: bytes, role: bytes, own: bytes, other: bytes) -> bytes:
    return hmac.digest(token, role + own + other, "sha256")


def _exactly(sock: socket.socket, num_bytes: int, until_s: float) -> bytes:
    content = b""
    while len(content) < num_bytes:
        sock.settimeout(max(0.001, until_s - time.monotonic()))
        part = sock.recv(num_bytes - len(content))
        if not part:
            raise Refused("closed before it proved itself")
        content += part
    return content
