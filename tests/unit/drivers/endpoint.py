"""Requests to a golden server through engine=openai, and their records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.clock import Event, WallLoop
from harness.cluster import Endpoint
from harness.drivers.openai_http import OpenAiEngine
from harness.engine_api import Experiment
from harness.records.record import Recorder, TokenRecord
from harness.request import Request
from harness.selftest.golden_server import GoldenServer
from harness.selftest.script import Script
from tests.unit.drivers.specs import HARDWARE, TINY

ASKED = 6


def config(url: str, **changes: Any) -> OpenAiEngine.Config:
    fields: dict[str, Any] = {
        "url": url,
        "model": None,
        "api": "completions",
        "api_key_env": None,
        "request_timeout_s": 20.0,
        "allow_early_end": False,
        "cold": False,
        "allow_cached": False,
        "extra_body": {"temperature": 0},
    }
    return OpenAiEngine.Config(**fields | changes)


def replay(
    scripts: Mapping[str, Script] | Script, tmp_path: Path, asked: int = ASKED, **changes: Any
) -> tuple[list[TokenRecord], GoldenServer, OpenAiEngine]:
    """Sends one request per script at time 0 and runs until each has ended."""
    if isinstance(scripts, Script):
        scripts = {"default": scripts}
    with GoldenServer(lambda body: scripts[body["model"]], list(scripts)) as server:
        engine = OpenAiEngine(config(server.url, **changes))
        requests = [Request(i, 0.0, name, 5, asked) for i, name in enumerate(scripts)]
        return run(engine, requests, tmp_path), server, engine


def run(engine: OpenAiEngine, requests: Sequence[Request], tmp_path: Path) -> list[TokenRecord]:
    loop = engine.make_loop()
    assert isinstance(loop, WallLoop)
    recorder = Recorder(requests)
    with engine.start(experiment_for(loop, recorder, requests, tmp_path)) as cluster:
        send_all(cluster.endpoints[0], loop, recorder, requests)
    return list(recorder.records.values())


def send_all(
    endpoint: Endpoint, loop: WallLoop, recorder: Recorder, requests: Sequence[Request]
) -> None:
    """As the client does, but all at time 0; returns when each has ended."""
    all_done = Event(loop)

    def on_done(_: Request) -> None:
        if recorder.num_done == len(requests):
            all_done.set()

    recorder.on_done.append(on_done)

    async def main() -> None:
        for request in requests:
            recorder.sent(request, loop.now)
            endpoint.submit(request)
        assert await loop.wait(all_done, until=60)

    loop.run(main())


def experiment_for(
    loop: WallLoop,
    recorder: Recorder,
    requests: Sequence[Request],
    tmp_path: Path,
    said: list[str] | None = None,
) -> Experiment:
    return Experiment(
        loop=loop,
        recorder=recorder,
        models={request.model: TINY for request in requests},
        hardware=HARDWARE,
        run_dir=tmp_path,
        seed=0,
        placements=[],
        scheduler={},
        announce=(said if said is not None else []).append,
    )
