"""engine=torch with its worker processes: tokens, stops, and every way in which a worker fails."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from omegaconf import OmegaConf

from harness.clock import Event, Loop
from harness.cluster import Cluster
from harness.configuration.config import typed
from harness.configuration.options import plain
from harness.engine.engine import TorchEngine
from harness.engine.instance import TorchInstance
from harness.engine_api import Experiment
from harness.errors import InstanceLost, RunError, UsageError
from harness.placement import dedicated
from harness.records.record import Recorder
from harness.request import Batch, Request
from tests.forked_workers import workers_alive
from tests.running import hardware_profile, model_spec

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]


class Bench:
    """A started engine, its loop and its recorder."""

    def __init__(self, experiment: Experiment, engine: TorchEngine, cluster: Cluster) -> None:
        self.loop: Loop = experiment.loop
        self.recorder = experiment.recorder
        self.log_dir = experiment.run_dir / "logs"
        self.resolved = engine.resolved()
        self.instances: list[TorchInstance] = list(cluster.instances)

    async def prefill(self, request: Request, instance: int = 0, chunk: int = 10_000) -> None:
        device = self.instances[instance]
        while not request.decoding and not request.finished:
            tokens = min(chunk, request.known_tokens - request.computed_tokens)
            assert device.kv.grow(request, request.computed_tokens + tokens)
            await device.execute(Batch(chunks=[(request, tokens)]))

    async def decode(self, *requests: Request, instance: int = 0, **how: Any) -> int:
        device = self.instances[instance]
        for request in requests:
            assert device.kv.grow(request, request.computed_tokens + 1)
        return await device.execute(Batch(decodes=list(requests)), **how)

    async def serve(self, request: Request, instance: int = 0, chunk: int = 10_000) -> None:
        await self.prefill(request, instance, chunk)
        while not request.finished:
            await self.decode(request, instance=instance)


@contextmanager
def started(
    run_dir: Path, requests: list[Request], num_instances: int = 1, tp: int = 1, **changes: Any
) -> Iterator[Bench]:
    values = OmegaConf.load(ROOT / "conf/engine/torch.yaml")
    del values["_target_"]
    small = {"num_kv_blocks": 64, "num_threads": 1}
    on = {"device": "cpu"} if tp > 1 else {}  # there may be one GPU
    values = OmegaConf.merge(values, small, on, changes)
    engine = TorchEngine(typed(plain(values), TorchEngine.Config, "engine"))
    hardware = replace(
        hardware_profile("local"), num_devices=num_instances * tp, devices_per_node=tp
    )
    model = replace(model_spec("tiny-llama"), tp=tp)
    run_dir.mkdir(exist_ok=True)
    experiment = Experiment(
        loop=engine.make_loop(),
        recorder=Recorder(requests),
        models={"default": model},
        hardware=hardware,
        run_dir=run_dir,
        seed=0,
        placements=dedicated({"default": model}, hardware),
        scheduler={},
        announce=lambda line: None,
    )
    with engine.start(experiment) as cluster:
        yield Bench(experiment, engine, cluster)


def request(number: int, prompt: int = 20, output: int = 8) -> Request:
    return Request(number, 0.0, "default", prompt, output)


def test_nixl_is_for_elastic_workers_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.engine.config.find_spec", lambda name: name)
    says = pytest.raises(UsageError, match=r"engine.transport=nixl .* valid here: sockets")
    with says, started(tmp_path, [], transport="nixl"):
        pass


@pytest.mark.parametrize(
    ("number", "rank", "changes", "says"),
    [
        (signal.SIGKILL, 1, {"tp": 2}, r"torch-0-rank1 .*killed by SIGKILL \(out of memory\?\)"),
        (signal.SIGSEGV, 0, {}, "torch-0 .*killed by SIGSEGV"),
        (signal.SIGSTOP, 0, {"hang_timeout_s": 2.0}, "torch-0 .*no sign of life for 2 s"),
    ],
)
def test_a_worker_that_dies_or_hangs_ends_the_run_and_is_named(
    tmp_path: Path, number: int, rank: int, changes: dict[str, Any], says: str
) -> None:
    long, idle = request(0, 20, 900), request(1)
    with started(tmp_path, [long, idle], num_instances=2, **changes) as bench:
        [victim] = [p for p in workers_alive() if p.pid == bench.instances[0].pids()[rank]]

        async def strike() -> None:
            while long.generated_tokens < 5:
                await bench.loop.sleep(0.01)
            victim.send_signal(number)

        async def story() -> None:
            bench.loop.spawn(strike(), name="strike")
            await bench.serve(long)

        with pytest.raises(RunError, match=says) as caught:
            bench.loop.run(story())
        assert str(victim.pid) in str(caught.value)
        assert "setup" in str(caught.value), "the log's tail is part of the message"
        # What was recorded until then is readable.
        assert len(bench.recorder.records[0].token_times_s()) == long.generated_tokens >= 5
    assert workers_alive() == []


def test_a_rank_whose_death_is_planned_takes_its_instance_along(tmp_path: Path) -> None:
    """The other one ends with the run."""
    long = request(0, 20, 900)
    with started(tmp_path, [long], num_instances=2, tp=2) as bench:
        assert len(workers_alive()) == 4
        lost, other = bench.instances
        ranks = [psutil.Process(pid) for pid in lost.pids()]
        lost.may_fail()

        async def strike() -> None:
            while long.generated_tokens < 5:
                await bench.loop.sleep(0.01)
            ranks[1].kill()

        async def story() -> None:
            bench.loop.spawn(strike(), name="strike")
            await bench.serve(long)

        with pytest.raises(InstanceLost, match="torch-0"):
            bench.loop.run(story())
        until_gone(ranks)
        assert all(map(runs, map(psutil.Process, other.pids())))
    assert workers_alive() == []


def test_a_worker_that_dies_while_nobody_waits_for_it_ends_the_run(tmp_path: Path) -> None:
    with started(tmp_path, [request(0)]) as bench:
        os.kill(bench.instances[0].pids()[0], signal.SIGKILL)
        with pytest.raises(RunError, match="torch-0"):
            bench.loop.run(forever(bench.loop))


async def forever(loop: Loop) -> None:
    await loop.wait(Event(loop))


def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(RunError, match=r"torch-0 .*failed: .*(?s:end of .*Traceback|memory)"),
        started(tmp_path, [], num_kv_blocks=1 << 44),
    ):
        pass
    assert workers_alive() == []


def test_settings_that_cannot_be_are_told_in_one_sentence(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="valid: auto, cpu, cuda"),
        started(tmp_path, [], device="tpu"),
    ):
        pass


def runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def until_gone(processes: list[psutil.Process]) -> None:
    deadline = time.monotonic() + 20
    while any(map(runs, processes)):
        assert time.monotonic() < deadline, "a worker outlives its harness, or its instance"
        time.sleep(0.05)
