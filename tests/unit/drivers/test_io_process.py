"""I/O processes: the same requests, tokens and errors as with the run's own thread, and an end that
is told."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from harness.clock import WallLoop
from harness.cluster import Cluster
from harness.drivers.exchange import Order
from harness.drivers.io_process import IoProcess
from harness.drivers.io_thread import Lateness, record_lateness
from harness.drivers.openai_http import OpenAiEngine
from harness.errors import RunError, UsageError
from harness.records.evidence import Evidence
from harness.records.record import Recorder
from harness.records.tables import requests_table
from harness.request import Request
from harness.selftest.golden_server import GoldenServer
from harness.selftest.script import Script
from tests.running import ROOT, command, run_here
from tests.unit.drivers.endpoint import ASKED, config, experiment_for, send_all

pytestmark = [pytest.mark.live, pytest.mark.alone]

SCRIPTS = {
    "fine": Script(ttft_s=0.05, gap_s=0.01),
    "chunks": Script(tokens_per_event=4),
    "reset": Script(reset_at=3, gap_s=0.01),
    "http": Script(status=500),
    "hang": Script(hang_at=2),
}


@contextmanager
def serving(
    server: GoldenServer, requests: list[Request], folder: Path, processes: int | None
) -> Iterator[tuple[Cluster, WallLoop, Recorder]]:
    loop, recorder = WallLoop(), Recorder(requests)
    experiment = experiment_for(loop, recorder, requests, folder)
    engine = OpenAiEngine(config(server.url, request_timeout_s=3.0))
    with engine.start(replace(experiment, processes=processes)) as cluster:
        yield cluster, loop, recorder


def children() -> list[psutil.Process]:
    found = psutil.Process().children()
    return [each for each in found if "harness.drivers.io_process" in each.cmdline()]


def seen(tmp_path: Path, processes: int | None) -> tuple[dict[str, Any], list[Any], Recorder]:
    """What each request came to, the prompts that the server got, and the record."""
    requests = [Request(i, 0.0, name, 5, ASKED) for i, name in enumerate([*SCRIPTS] * 6)]
    with GoldenServer(lambda body: SCRIPTS[body["model"]], [*SCRIPTS]) as server:
        with serving(server, requests, tmp_path, processes) as (cluster, loop, recorder):
            assert len(children()) == (processes or 0)
            send_all(cluster.endpoints[0], loop, recorder, requests)
        prompts = sorted(answer.body["prompt"] for answer in server.answers)
    found = {}
    for record in recorder.records.values():
        tokens = [segment.num_tokens for segment in record.segments]
        found[record.request.request_id] = (
            record.status, record.error, tokens, record.instance, record.reported,
        )  # fmt: skip
        assert record.sent_s is not None
        assert (record.token_times_s() >= record.sent_s).all()
    return found, prompts, recorder


def test_two_processes_find_what_one_thread_finds(tmp_path: Path) -> None:
    alone, sent, _ = seen(tmp_path, None)
    found, prompts, recorder = seen(tmp_path, 2)
    assert found == alone
    assert prompts == sent
    assert {status for status, *_ in found.values()} == {"completed", "failed", "timeout"}
    assert not children()
    (heart,) = (event for event in recorder.events if event["kind"] == "heartbeat")
    assert heart["fields"]["stamped_by"] in ("kernel", "client")
    evidence = Evidence.of(requests_table(recorder), recorder.events, simulated=False)
    assert evidence.receive_lag is not None


def test_times_at_which_any_of_them_was_late_are_joined() -> None:
    loop, recorder = WallLoop(), Recorder([])
    loop.start_monotonic_s = 10.0
    one = Lateness([(9.0, 11.0), (15.0, 16.0), (20.0, 22.0)], [(12.0, 13.0)], 0.0, 0.5)
    two = Lateness([(8.0, 9.5), (15.5, 18.0), (16.5, 17.0)], [], 12.0, 0.75)
    record_lateness([one, two], loop, recorder)
    found = [(e["start_s"], e["end_s"]) for e in recorder.events if e["kind"] == "stall"]
    assert found == [(0.0, 1.0), (5.0, 8.0), (10.0, 12.0)]
    heart, late = recorder.events[0]["fields"], recorder.events[-1]["fields"]
    assert (heart["cpu_wait_s"], heart["stamped_by"]) == (0.75, "client")
    assert (late["since_s"], late["came_s"]) == ((2.0,), (3.0,))


def test_a_stopped_process_is_late_by_the_runs_own_verdict(tmp_path: Path) -> None:
    """The process could neither send nor read: its heartbeat and its send lag tell so."""
    requests = [Request(i, 0.0, "default", 5, ASKED) for i in range(40)]
    with (
        GoldenServer(lambda _: Script(gap_s=0.05)) as server,
        serving(server, requests, tmp_path, 2) as (cluster, loop, recorder),
    ):
        late = children()[0]
        late.suspend()
        threading.Timer(0.4, late.resume).start()
        send_all(cluster.endpoints[0], loop, recorder, requests)
    lags_s = [record.sent_s or 0.0 for record in recorder.records.values()]
    assert sum(lag_s > 0.2 for lag_s in lags_s) == 20
    stalls = [each for each in recorder.events if each["kind"] == "stall"]
    assert max(each["end_s"] - each["start_s"] for each in stalls) > 0.2


def test_a_process_that_reads_no_more_is_an_error_and_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harness.drivers.io_process.END_S", 1)
    more = Order(0, b"x" * 10_000_000, 10, 5.0, keep=False)  # than a socket holds
    with IoProcess(WallLoop(), 0) as made:
        line = made.line("http://127.0.0.1:9/v1/completions", Mock())
        os.kill(made._process.pid, signal.SIGSTOP)
        with pytest.raises(RunError, match="I/O process 0 has read nothing for 1 s"):
            line.send(more)
    assert made._process.returncode == -signal.SIGKILL


def test_the_death_of_a_process_ends_the_run_and_names_it(tmp_path: Path) -> None:
    requests = [Request(i, 0.0, "default", 5, ASKED) for i in range(4)]
    says = r"I/O process [01] \(pid \d+\) ended before the run did: killed by signal 9"

    def killed_at_once(server: GoldenServer) -> None:
        with serving(server, requests, tmp_path, 2) as (cluster, loop, recorder):
            os.kill(children()[0].pid, signal.SIGKILL)
            send_all(cluster.endpoints[0], loop, recorder, requests)

    with GoldenServer(lambda _: Script(hang_at=1)) as server, pytest.raises(RunError, match=says):
        killed_at_once(server)
    assert not children()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_run(tmp_path: Path, number: int) -> None:
    def as_from_a_terminal() -> None:  # a shell ignores Ctrl-C for what it runs behind
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,model,prompt_tokens,output_tokens\n0.0,m,8,4\n")
    with GoldenServer(lambda _: Script(hang_at=1), ["m"]) as server:
        words = "engine=openai", f"engine.url={server.url}", "+client.processes=2", "tracking=none"
        run = subprocess.Popen(
            command("+system=vllm", "+workload=trace", f"workload.path={trace}", *words,
                    f"hydra.run.dir={tmp_path}/run"),
            cwd=ROOT, preexec_fn=as_from_a_terminal,
        )  # fmt: skip
        while not server.answers:
            assert run.poll() is None
            time.sleep(0.05)
        processes = psutil.Process(run.pid).children()
        assert len(processes) == 2
        run.send_signal(number)
        assert run.wait(60) in (130, -signal.SIGKILL)
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert not alive


@pytest.mark.parametrize(
    "words",
    [("engine=sim", "hardware=a100x1", "model=llama2-7b"), ("engine=openai", "engine.url=http://h",
      "client.concurrency=2")],
)  # fmt: skip
def test_what_cannot_be_dealt_over_processes_is_refused(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    run = "+system=vllm", "+workload=burstgpt", "workload.num_requests=2", "+client.processes=2"
    with pytest.raises(UsageError, match=r"client\.processes=2 is for engine=openai or vllm"):
        run_here(tmp_path / "run", *run, *words)
