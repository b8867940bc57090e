"""Who does not know a run's token is refused, before anything of it is read."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from harness.engine import tcp
from harness.engine.transport import Connection

TOKEN = secrets.token_bytes(tcp.TOKEN_BYTES)
WAIT_S = 20.0


class Accepting:
    """An end that waits for one connection, in a thread."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = self.server.getsockname()
        self.got: Any = None
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        try:
            self.got = tcp.accept(self.server, TOKEN)
        except tcp.Refused as error:
            self.got = error

    def result(self) -> Any:
        self._thread.join(WAIT_S)
        return self.got


@pytest.fixture
def accepting() -> Iterator[Accepting]:
    made = Accepting()
    with made.server:
        yield made


def test_two_ends_that_know_the_token_exchange_messages(accepting: Accepting) -> None:
    connected = tcp.connect(accepting.address, TOKEN)
    ours, theirs = map(Connection, (connected, accepting.result()))
    ours.send({"op": "bytes"}, bytes(3_000_000))
    header, payload = theirs.receive()
    assert (header, len(payload)) == ({"op": "bytes"}, 3_000_000)
    ours.close()
    with pytest.raises(EOFError):
        theirs.receive()
    theirs.close()


def test_a_wrong_token_is_refused_at_both_ends(accepting: Accepting) -> None:
    with pytest.raises(tcp.Refused):
        tcp.connect(accepting.address, secrets.token_bytes(tcp.TOKEN_BYTES))
    with tcp.connect(accepting.address, TOKEN) as right, accepting.result() as got:
        right.sendall(b"x")
        assert got.recv(1) == b"x", "the stranger has not taken the place of the right one"


def test_an_answer_that_is_sent_back_is_none(accepting: Accepting) -> None:
    with socket.create_connection(accepting.address) as mirror:
        mirror.settimeout(WAIT_S)
        for _ in range(2):  # its nonce, and its answer
            mirror.sendall(mirror.recv(tcp.NONCE_BYTES))
        assert not mirror.recv(1), "closed"


def test_silence_and_a_closed_port_end_in_time(
    accepting: Accepting, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_connection(accepting.address):
        refused = accepting.result()
    assert isinstance(refused, tcp.Refused)
    assert "nobody with the run's token connected in" in str(refused)
    accepting.server.close()
    with pytest.raises(tcp.Refused, match="cannot be reached"):
        tcp.connect(accepting.address, TOKEN)
