"""What a run does with answers of its coordinator that are none."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from harness.clock import WallLoop
from systems.aqua.coordinator.client import Remote


class Nonsense(BaseHTTPRequestHandler):
    def do_PUT(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"what")

    do_POST = do_PUT

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.timeout(20)
def test_an_answer_that_is_no_json_ends_the_run_and_does_not_hang_it() -> None:
    server = HTTPServer(("127.0.0.1", 0), Nonsense)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    process: Any = SimpleNamespace(
        port=server.server_port, revive=lambda: None, stop=lambda: None, restarts=0
    )
    loop = WallLoop()
    remote = Remote(process, loop)
    try:
        with pytest.raises(ValueError, match="Expecting value"):
            loop.run(remote.heartbeat("gpu1"))
    finally:
        remote.close()
        server.shutdown()
        server.server_close()
