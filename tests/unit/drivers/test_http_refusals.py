"""Addresses and configurations of engine=openai that cannot serve: one sentence, before the run."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from harness.drivers.openai_http import OpenAiEngine
from harness.errors import RunError, UsageError
from harness.request import Request
from harness.selftest.golden_server import GoldenServer
from harness.selftest.script import Script
from tests.unit.drivers.endpoint import config, run

pytestmark = [pytest.mark.live, pytest.mark.alone]


@contextmanager
def nothing_found() -> Iterator[str]:
    """The address of a server that answers any GET with 404."""

    class NotFound(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), NotFound) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("path", "hints"), [("", True), ("/v1", False)])
def test_a_base_url_without_models_is_refused_unless_a_model_is_named(
    tmp_path: Path, path: str, hints: bool
) -> None:
    requests = [Request(0, 0.0, "default", 5, 1)]
    with nothing_found() as address, pytest.raises(UsageError) as caught:
        run(OpenAiEngine(config(address + path)), requests, tmp_path)
    assert f"{address}{path}/models answered HTTP 404" in str(caught.value)
    assert "engine.model=NAME" in str(caught.value)
    assert (f"often {address}/v1" in str(caught.value)) is hints


def test_the_first_404_ends_the_run_in_one_sentence(tmp_path: Path) -> None:
    requests = [Request(i, 0.0, "default", 5, 1) for i in range(20)]
    with (
        GoldenServer(lambda _: Script(status=404)) as server,
        pytest.raises(RunError, match=r"/v1/completions answered HTTP 404: .*engine.model"),
    ):
        run(OpenAiEngine(config(server.url)), requests, tmp_path)


def test_the_devices_behind_a_url_are_not_known() -> None:
    resolved = OpenAiEngine(config("http://127.0.0.1:1/v1")).resolved()
    assert resolved["devices"] == ["unknown, behind URL"]


def test_a_url_where_nothing_listens_ends_the_run_at_its_start(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, not listening: refused
        url = f"http://127.0.0.1:{held.getsockname()[1]}/v1"
        with pytest.raises(UsageError, match="cannot be reached"):
            run(OpenAiEngine(config(url)), [Request(0, 0.0, "default", 5, 1)], tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"url": "localhost:8000"}, "engine.url must be a base URL"),
        ({"api": "embeddings"}, "engine.api=embeddings is not one of: completions, chat"),
        ({"url": "http://"}, "engine.url must be a base URL"),
        ({"url": "http://h:99999/v1"}, "engine.url must be a base URL"),
        ({"url": "http://h:x/v1"}, "engine.url must be a base URL"),
        ({"url": "http://ex..ample/v1"}, "engine.url must be a base URL"),
        ({"url": f"http://{'x' * 300}/v1"}, "engine.url must be a base URL"),
        ({"url": "http://h ost/v1"}, "engine.url must be a base URL"),
        ({"url": "http://[::1/v1"}, "engine.url must be a base URL"),
        (
            {"url": "http://h/v1?key=1"},
            "engine.url=http://h/v1 must be a base URL: ",
        ),
        ({"api_key_env": "NO_SUCH_KEY"}, "NO_SUCH_KEY"),
        ({"request_timeout_s": 0}, "engine.request_timeout_s=0 must be above 0"),
        ({"request_timeout_s": float("nan")}, "engine.request_timeout_s=nan must be"),
    ],
)
def test_a_config_that_cannot_work_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        OpenAiEngine(config(**{"url": "http://127.0.0.1:1/v1"} | changes))
    assert says in str(caught.value)
