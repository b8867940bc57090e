"""Faults on purpose: what is refused, whether each struck, and what a verdict makes of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from harness.clock import WallLoop
from harness.device.processes import Processes, below
from harness.engine.far_victims import FarNode
from harness.errors import UsageError
from harness.records.end_table import fault_lines, other_lines
from harness.records.record import Recorder
from harness.records.run_folder import FinishedRun
from harness.running.faults import Faults, Kill, striking
from tests.running import run_here

SIMULATED = (
    "+system=vllm", "+workload=burstgpt", "engine=sim", "hardware=a100x2", "model=llama2-7b",
    "workload.num_requests=100", "figure=null", "data.dir=null", "data.download=false",
)  # fmt: skip
KILL = "faults.kill=[{instance: 1, at_s: 20}]"


def test_a_killed_instance_fails_what_it_has_and_the_others_serve_the_rest(tmp_path: Path) -> None:
    run = served(tmp_path, KILL)
    table = run.requests.to_pydict()
    failed = [i for i, status in enumerate(table["status"]) if status == "failed"]
    assert failed
    assert {table["error"][i] for i in failed} == {"instance sim-1 is lost: killed"}
    assert all(table["instance"][i] in ("", "sim-1") for i in failed)
    after = [name for name, at_s in zip(table["instance"], table["arrival_s"], strict=True)
             if at_s > 25]  # fmt: skip
    assert set(after) == {"sim-0"}
    times_s = [times[-1] for name, times in zip(table["instance"], table["token_times_s"],
               strict=True) if name == "sim-1" and times]  # fmt: skip
    assert max(times_s) <= 20
    assert run.summary["verdict"]["status"] == "VALID"
    (fault,) = run.summary["faults"]
    assert (fault["fault"], fault["struck"], fault["start_s"]) == ("kill", True, 20.0)


def test_a_stalled_instance_gives_no_token_meanwhile_and_then_goes_on(tmp_path: Path) -> None:
    run = served(tmp_path, "faults.stall=[{instance: 0, after_requests: 10, for_s: 5}]")
    table = run.requests.to_pydict()
    assert set(table["status"]) == {"completed"}
    (fault,) = run.summary["faults"]
    assert fault["struck"]
    start_s, end_s = fault["start_s"], fault["end_s"]
    assert end_s == start_s + 5
    of = [times for name, times in zip(table["instance"], table["token_times_s"], strict=True)
          if name == "sim-0"]  # fmt: skip
    every = sorted({time_s for times in of for time_s in times})
    assert len([time_s for time_s in every if start_s < time_s < end_s]) <= 1  # the one under way
    assert any(time_s < start_s for time_s in every)
    assert any(time_s > end_s for time_s in every)


def test_a_slow_instance_computes_a_share_of_what_it_does_alone(tmp_path: Path) -> None:
    alone = served(tmp_path / "alone")
    slow = served(tmp_path, "faults.stall=[{instance: 0, at_s: 10, for_s: 20, factor: 4}]")
    (fault,) = slow.summary["faults"]
    assert (fault["struck"], fault["start_s"], fault["planned"]) == (
        True, 10.0, "instance 0 at 10 s, 4 times as slow",
    )  # fmt: skip
    assert fault["end_s"] == pytest.approx(30)
    before, now = (steps(run, 10, 30) for run in (alone, slow))
    assert 0.1 * before < now < 0.5 * before  # requests pile up, and steps become longer
    told = ("faults", "on purpose: stall of instance 0 at 10 s, 4 times as slow (sim-0)")
    assert told in other_lines(slow.summary)
    assert not [*fault_lines(alone.summary)]


def test_table_and_report_tell_a_fault_that_did_not_strike() -> None:
    fault = {"fault": "kill", "planned": "instance 1 at 5 s", "instance": "vllm-1"}
    missed = fault | {"struck": False, "why_not": "it had ended"}
    told = "on purpose: kill of instance 1 at 5 s (vllm-1), which did not strike: it had ended"
    assert [*fault_lines({"faults": [missed]})] == [("faults", told)]


def steps(run: FinishedRun, start_s: float, end_s: float) -> int:
    """Steps of sim-0 in that time: distinct times of its tokens."""
    table = run.requests.to_pydict()
    times = [times for name, times in zip(table["instance"], table["token_times_s"], strict=True)
             if name == "sim-0"]  # fmt: skip
    return len({time_s for each in times for time_s in each if start_s <= time_s < end_s})


def test_a_fault_that_strikes_a_dead_instance_makes_the_run_invalid(tmp_path: Path) -> None:
    run = served(
        tmp_path, "faults.kill=[{instance: 1, at_s: 5}]",
        "faults.stall=[{instance: 1, at_s: 6, for_s: 1}]",
    )  # fmt: skip
    assert run.invalid == ("a fault did not strike: stall of instance 1 at 6 s: it was dead before")


def test_a_stall_that_outlasts_the_run_makes_it_invalid(tmp_path: Path) -> None:
    run = served(tmp_path, "faults.stall=[{instance: 1, after_requests: 99, for_s: 9000}]")
    assert "the run ended in its midst" in run.invalid


@pytest.mark.parametrize(("factor", "arrives"), [("", False), (", factor: 2", True)])
def test_stalled_links_carry_nothing_and_slow_ones_something(
    tmp_path: Path, factor: str, arrives: bool
) -> None:
    """KV goes from instances that prefill to 2 and 3, which decode."""
    run_here(
        tmp_path / "run", "+system=distserve", "+workload=burstgpt", "engine=sim",
        "workload.num_requests=24", "workload.scale.to_rate_per_s=4", "figure=null",
        "data.dir=null", "data.download=false", "faults.stall=["
        f"{{link: 2, at_s: 2, for_s: 3{factor}}}, {{link: 3, at_s: 2, for_s: 3{factor}}}]",
    )  # fmt: skip
    run = FinishedRun.load(tmp_path / "run")
    assert [fault["struck"] for fault in run.summary["faults"]] == [True, True]
    assert run.summary["num_completed"] == 24
    events = pq.read_table(tmp_path / "run" / "events.parquet").to_pylist()
    ends_s = [event["end_s"] for event in events if event["kind"] == "kv_move"]
    assert any(end_s < 2 for end_s in ends_s)
    assert any(2 < end_s < 5 for end_s in ends_s) == arrives
    assert any(end_s > 5 for end_s in ends_s)


@pytest.mark.parametrize("router", ["least_loaded", "prefix_aware"])
def test_routers_pass_an_instance_over_that_has_died(tmp_path: Path, router: str) -> None:
    run = served(tmp_path, "faults.kill=[{instance: 1, at_s: 5}]", f"system.router={router}")
    table = run.requests.to_pydict()
    assert not run.invalid
    late = [i for i, at_s in enumerate(table["arrival_s"]) if at_s > 6]
    assert {table["status"][i] for i in late} == {"completed"}
    assert {table["instance"][i] for i in late} == {"sim-0"}


def test_with_every_instance_dead_each_request_fails_with_a_reason(tmp_path: Path) -> None:
    run = served(tmp_path, "faults.kill=[{instance: 0, at_s: 20}, {instance: 1, at_s: 20}]")
    table = run.requests.to_pydict()
    assert set(table["status"]) == {"completed", "failed"}
    assert table["error"][-1] == "every instance of default is lost"


@pytest.mark.parametrize("mode", ["replication", "migration"])
def test_llumnix_has_others_compute_the_requests_of_a_dead_instance(
    tmp_path: Path, mode: str
) -> None:
    summary = run_here(
        tmp_path / "run", "+system=llumnix", f"system.mode={mode}", "+workload=burstgpt",
        "engine=sim", "workload.num_requests=40", "workload.scale.to_rate_per_s=4",
        "faults.kill=[{instance: 0, at_s: 4}, {instance: 2, at_s: 4.5}]", "figure=null",
        "data.dir=null", "data.download=false",
    )  # fmt: skip
    assert summary["num_completed"] == 40
    assert [fault["struck"] for fault in summary["faults"]] == [True, True]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("kill=[{instance: 2, at_s: 1}]", "faults.kill names instance 2; valid: 0 to 1"),
        ("stall=[{instance: 0, at_s: 1e6, for_s: 1}]", "at_s=1000000.0 is after the last arrival"),
        ("kill=[{instance: 0, after_requests: 100}]", "after_requests=100 is not before the last"),
        ("kill=[{instance: 0, after_requests: 0}]", "after_requests=0 must be at least 1"),
        ("kill=[{instance: 0}]", "at_s=None, after_requests=None: one of the two is to be given"),
        ("stall=[{instance: 0, at_s: 1, for_s: 0}]", "for_s=0.0 must be a finite time above 0 s"),
        ("stall=[{at_s: 1, for_s: 1}]", "instance=None, link=None, part=None: one of these"),
        ("kill=[{instance: 0, host: 0, at_s: 1}]", "instance=0, host=0, part=None: one of these"),
        ("stall=[{instance: 0, at_s: 1, for_s: 1, factor: 1}]", "factor=1.0 must be a finite"),
        ("stall=[{link: 0, at_s: 1, for_s: 1}]", "links are not the harness's to stall"),
        ("stall=[{link: 2, at_s: 1, for_s: 1}]", "faults.stall names link 2; valid: 0 to 1"),
        ("kill=[{part: router, at_s: 1}]", "names part router; valid: none in this run"),
        ("kill=[{host: 0, at_s: 1}]", "this system's hosts cannot fail"),
    ],
)
def test_a_fault_that_cannot_strike_is_refused(tmp_path: Path, override: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        run_here(tmp_path / "run", *SIMULATED, f"faults.{override}")
    assert not (tmp_path / "run").exists()


def test_an_engine_that_starts_no_instance_is_refused(tmp_path: Path) -> None:
    words = ("+system='null'", "+workload=azure_code", "engine=none", "figure=null")
    small = ("data.dir=null", "data.download=false", "workload.num_requests=20")
    with pytest.raises(UsageError, match="choose engine=torch, engine=vllm or engine=sim"):
        run_here(tmp_path / "run", *words, *small, "faults.kill=[{instance: 0, at_s: 0}]")


SPINS = "import time\nprint(1, flush=True)\nwhile time.monotonic(): pass"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing but use processor time."""
    process = subprocess.Popen([sys.executable, "-c", SPINS], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def stalled(victim: Processes, loop: WallLoop) -> bool:
    async def main() -> Any:
        return await victim.stall(0.2)

    found: bool = loop.run(main())
    return found


def test_a_stalled_process_is_seen_to_stop_and_goes_on(child: subprocess.Popen[bytes]) -> None:
    loop = WallLoop()
    assert stalled(Processes("one", loop, lambda: [child.pid]), loop)
    assert psutil.Process(child.pid).status() != psutil.STATUS_STOPPED


def test_a_process_that_goes_on_in_the_midst_of_its_stall_was_not_stalled(
    child: subprocess.Popen[bytes],
) -> None:
    loop = WallLoop()
    victim = Processes("one", loop, lambda: [child.pid])

    async def main() -> Any:
        stall = loop.spawn(victim.stall(0.4), name="stall")
        await loop.sleep(0.1)
        psutil.Process(child.pid).resume()
        await loop.wait(stall.finished)
        return stall.result

    assert loop.run(main()) is False


def test_a_stall_that_is_broken_off_leaves_no_process_stopped(
    child: subprocess.Popen[bytes],
) -> None:
    loop = WallLoop()
    victim = Processes("one", loop, lambda: [child.pid])

    async def main() -> None:
        loop.spawn(victim.stall(60.0), name="stall")
        await loop.sleep(0.05)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop.run(main())
    assert psutil.Process(child.pid).status() != psutil.STATUS_STOPPED


def test_a_killed_process_is_dead_and_cannot_be_stalled(child: subprocess.Popen[bytes]) -> None:
    loop = WallLoop()
    victim = Processes("one", loop, lambda: [child.pid])
    assert victim.alive
    victim.kill()
    child.wait()
    assert not victim.alive
    assert not stalled(victim, loop)
    assert below(child.pid) == []


@pytest.mark.parametrize(
    ("numbers", "says"),
    [((2,), "names host 2; valid: 0 to 1"), ((-1,), "names host -1; valid"), ((0, 1), "all 2 hos")],
)
def test_hosts_of_a_cluster_can_be_killed_but_not_all(
    numbers: tuple[int, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the system makes of it."""
    hosts = [FarNode(number, Any) for number in range(2)]
    monkeypatch.setattr(FarNode, "alive", True)
    cluster: Any = SimpleNamespace(victims=(), elastic=None, hosts=hosts)
    planned = Faults(kill=[Kill(host=number, at_s=0.0) for number in numbers])
    with (
        pytest.raises(UsageError, match=says),
        striking(planned, cluster, {}, WallLoop(), Recorder([])),
    ):
        pass
    recorder = Recorder([])
    with striking(Faults(kill=[Kill(host=1, at_s=0.0)]), cluster, {}, WallLoop(), recorder):
        pass
    assert [event["instance"] for event in recorder.events] == ["host 1"]


def served(tmp_path: Path, *overrides: str) -> FinishedRun:
    run_here(tmp_path / "run", *SIMULATED, *overrides)
    return FinishedRun.load(tmp_path / "run")
