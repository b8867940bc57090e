"""Real vLLM servers on this machine: exact answers, values read back, no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.clock import Event, WallLoop
from harness.cluster import Cluster
from harness.cost.hardware import Hardware
from harness.drivers.vllm import VllmEngine
from harness.engine_api import Experiment
from harness.errors import RunError
from harness.placement import dedicated
from harness.records.record import Recorder, TokenRecord
from harness.request import Request
from tests.unit.drivers.specs import HARDWARE, TINY

pytestmark = [pytest.mark.live, pytest.mark.vllm]

ROOT = Path(__file__).resolve().parents[2]
NUM_SERVERS = 2
NUM_BLOCKS = 512
SCHEDULER = {
    "max_num_seqs": 16, "max_num_batched_tokens": 512, "enable_chunked_prefill": True,
    "enable_prefix_caching": False,
}  # fmt: skip
GOOD = [Request(i, 0.0, "default", 40 * (i + 1), 8 * (i + 1)) for i in range(8)]
TOO_LONG = Request(8, 0.0, "default", TINY.max_position + 1, 4)
ENDLESS = [Request(i, 0.0, "default", 16, 8000) for i in range(9, 13)]


def engine() -> VllmEngine:
    return VllmEngine(
        VllmEngine.Config(
            num_kv_blocks=NUM_BLOCKS,
            block_tokens=32,
            gpu_memory_utilization=0.9,
            cpu_kv_cache_bytes=1 << 28,
            load_format="dummy",
            request_timeout_s=120.0,
            start_timeout_s=240.0,
            extra_args=["--enforce-eager"],  # starts sooner
            extra_env={},
            token_ids=True,
        )
    )


def experiment(run_dir: Path, requests: Sequence[Request], num_devices: int) -> Experiment:
    names = Hardware.__dataclass_fields__
    fields: dict[str, Any] = {name: getattr(HARDWARE, name) for name in names}
    hardware = Hardware(**fields | {"num_devices": num_devices})
    return Experiment(
        loop=WallLoop(),
        recorder=Recorder(requests),
        models={"default": TINY},
        hardware=hardware,
        run_dir=run_dir,
        seed=0,
        placements=dedicated({"default": TINY}, hardware),
        scheduler=SCHEDULER,
        announce=print,
    )


@dataclass
class Served:
    engine: VllmEngine
    experiment: Experiment
    cluster: Cluster
    processes: list[psutil.Process]  # the servers', all of them

    def replay(self, requests: Sequence[Request], timeout_s: float = 100.0) -> list[TokenRecord]:
        loop, recorder = self.experiment.loop, self.experiment.recorder
        one_done = Event(loop)
        recorder.on_done.append(lambda _: one_done.set())
        records = [recorder.records[request.request_id] for request in requests]

        async def main() -> None:
            for i, request in enumerate(requests):
                recorder.sent(request, loop.now)
                self.cluster.endpoints[i % NUM_SERVERS].submit(request)
            while any(record.status == "sent" for record in records):
                one_done.clear()
                assert await loop.wait(one_done, until=timeout_s)

        loop.run(main())
        return records


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    run_dir = tmp_path_factory.mktemp("run")
    trial = experiment(run_dir, [*GOOD, TOO_LONG, *ENDLESS], NUM_SERVERS)
    before = set(psutil.Process().children(recursive=True))
    subject = engine()
    with subject.start(trial) as cluster:
        after = set(psutil.Process().children(recursive=True))
        yield Served(subject, trial, cluster, list(after - before))
    # One server was killed by the last test, the other ended as at any run's end.
    assert not [process for process in after - before if process.is_running()]


def test_every_request_gets_exactly_its_tokens(served: Served) -> None:
    for record in served.replay(GOOD):
        assert (record.status, record.error) == ("completed", "")
        assert len(record.token_times_s()) == record.request.output_tokens
        assert record.request.finished
        assert isinstance(record.request.answer, list)
        assert len(record.request.answer) == record.request.output_tokens
        times = record.token_times_s().tolist()
        assert times == sorted(times)
        assert times[0] > (record.sent_s or 0.0)
    assert {r.instance for r in served.experiment.recorder.records.values()} >= {"vllm-0", "vllm-1"}


def test_resolved_values_are_the_servers_own(served: Served) -> None:
    resolved = served.engine.resolved()
    assert resolved["num_instances"] == NUM_SERVERS
    assert resolved["num_kv_blocks"] == {TINY.name: NUM_BLOCKS}
    assert resolved["vllm_version"]
    assert resolved["devices"]
    for server in resolved["servers"].values():
        assert server["block_tokens"] == 32
        assert server["max_model_len"] == TINY.max_position
        assert server["enable_prefix_caching"] is False
        assert server["dtype"] == TINY.dtype
        for name, value in SCHEDULER.items():
            assert server[name] == value


def test_a_request_beyond_the_context_fails_as_http_400(served: Served) -> None:
    (record,) = served.replay([TOO_LONG])
    assert record.status == "failed"
    assert record.error.startswith("HTTP 400: ")


def test_a_server_killed_in_mid_run_ends_the_run_and_is_named(served: Served) -> None:
    loop, recorder = served.experiment.loop, served.experiment.recorder
    main_processes = [p for p in served.processes if "api_server" in " ".join(p.cmdline()[:4])]
    assert len(main_processes) == NUM_SERVERS

    async def run() -> None:
        for request in ENDLESS:
            recorder.sent(request, loop.now)
            served.cluster.endpoints[request.request_id % NUM_SERVERS].submit(request)
        while recorder.records[ENDLESS[0].request_id].request.generated_tokens == 0:
            await loop.sleep(0.05)
        main_processes[0].send_signal(signal.SIGKILL)
        await loop.wait(Event(loop), until=loop.now + 60)

    with pytest.raises(RunError, match=r"during the run, vllm-\d ended \(killed by SIGKILL\)"):
        loop.run(run())


def test_nothing_is_left_when_the_harness_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path\n"
        "from tests.integration.test_vllm_engine import engine, experiment\n"
        "with engine().start(experiment(Path(sys.argv[1]), [], 1)):\n"
        "    print('up', flush=True)\n"
        "    time.sleep(600)\n"
    )
    harness = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with harness:
        assert harness.stdout is not None
        assert any(line == "up\n" for line in harness.stdout), "it did not come up"
        processes = psutil.Process(harness.pid).children(recursive=True)
        harness.kill()
    assert len(processes) >= 4  # supervisor, API server, engine core, worker
    deadline_s = time.monotonic() + 30
    while left := [process for process in processes if process.is_running()]:
        assert time.monotonic() < deadline_s, left
        time.sleep(0.1)
