"""A server's stall, and a high rate, as a run of the whole harness reports them.

The server is scripted and in this process, the harness in one of its own, as a user runs it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from harness.records.evidence import MAX_LAG_S
from harness.selftest.golden_server import GoldenServer
from harness.selftest.script import Script
from tests.running import run_command

pytestmark = [pytest.mark.live, pytest.mark.alone]

NUM_REQUESTS, RATE_PER_S = 1000, 200.0  # 5 s; P99 needs 662 requests
STALL_AT, STALL_S = 300, 1.0
ANSWER = Script(ttft_s=0.2)  # 40 requests are under way at a time


class Stall:
    """The whole server stands still for STALL_S, once, as its request STALL_AT comes in: it answers
    none of those under way and takes no new one."""

    def __init__(self) -> None:
        self._num_seen = 0

    def __call__(self, body: dict[str, Any]) -> Script:
        self._num_seen += 1
        if self._num_seen == STALL_AT:
            time.sleep(STALL_S)  # in the server's own thread, under its event loop
        return Script()


def replayed(server: GoldenServer, tmp_path: Path) -> dict[str, Any]:
    trace = tmp_path / "steady.csv"
    rows = (f"{i / RATE_PER_S},m,8,2\n" for i in range(NUM_REQUESTS))
    trace.write_text("arrival_s,model,prompt_tokens,output_tokens\n" + "".join(rows))
    done = run_command(
        "+system=vllm", "+workload=trace", f"workload.path={trace}", "engine=openai",
        f"engine.url={server.url}", "tracking=none", "figure=null", "progress=false",
        f"hydra.run.dir={tmp_path / 'run'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["num_completed"] == NUM_REQUESTS
    return summary


def test_a_stall_shows_in_p99_and_holds_back_no_later_request(tmp_path: Path) -> None:
    with GoldenServer(Stall()) as server:
        summary = replayed(server, tmp_path)
    # A hundred requests arrive in the first half of the stall, and P99 leaves out ten. A client
    # that waits for the server would send those late and find them answered at once.
    assert summary["ttft_s"]["p99"] >= STALL_S / 2
    assert summary["send_lag_s"]["p99"] < STALL_S / 2


def test_two_hundred_requests_a_second_are_sent_in_time_or_the_run_is_invalid(
    tmp_path: Path,
) -> None:
    with GoldenServer(lambda body: ANSWER) as server:
        summary = replayed(server, tmp_path)
    lag_s, reasons = summary["send_lag_s"], summary["verdict"]["reasons"]
    # A client that cannot keep pace falls further behind with each request, and misses the rate.
    assert lag_s["p50"] <= MAX_LAG_S
    # Other programs on these cores may hold up some sends and reads; then the run must say so.
    lag = summary["receive_lag_s"]
    judged = ("tokens_p99", "with_send_p99") + ("p99",) * (lag["stamped_by"] == "client")
    read_late_s = [lag[key] for key in judged]
    expected = ["the client was late"] * (lag_s["p99"] > MAX_LAG_S)
    expected += ["the client's stamps were late"] * (max(read_late_s) > MAX_LAG_S)
    assert [reason.partition(":")[0] for reason in reasons] == expected
