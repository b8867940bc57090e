"""A closed loop over HTTP: its requests share the connections that were opened before the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.clock import WallLoop
from harness.drivers.openai_http import OpenAiEngine
from harness.records.closed_loop import kept
from harness.records.record import Recorder
from harness.records.tables import requests_table
from harness.records.token_log import TokenLog
from harness.request import Request
from harness.running.closed_loop import ClosedLoop
from harness.selftest.golden_server import GoldenServer
from harness.selftest.script import Script
from tests.unit.drivers.endpoint import config, experiment_for

pytestmark = [pytest.mark.live, pytest.mark.alone]


def test_requests_over_http_follow_each_other(tmp_path: Path) -> None:
    requests = [Request(i, 1e3 * i, "default", 5, 6) for i in range(12)]
    loop, recorder = WallLoop(), Recorder(requests)
    with GoldenServer(lambda _: Script(ttft_s=0.05, gap_s=0.02)) as server:
        experiment = experiment_for(loop, recorder, requests, tmp_path)
        engine = OpenAiEngine(config(server.url))
        with engine.start(replace(experiment, concurrency=3)) as cluster:
            endpoint = cluster.endpoints[0]
            client = ClosedLoop(3, 30.0, loop=loop, recorder=recorder, system=endpoint)
            loop.run(client.play(requests))
    assert {record.status for record in recorder.records.values()} == {"completed"}
    log = TokenLog.from_table(requests_table(recorder))
    found = kept(log, 3).mean_in_flight
    assert found is not None
    assert 2 < found <= 3
    ends, sent = sorted(log.last_s), sorted(log.sent_s)
    assert all(next_s >= end_s for end_s, next_s in zip(ends, sent[3:], strict=False))
