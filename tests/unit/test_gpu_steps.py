"""`python -m tests.gpu`: its steps are bounded, kept and told; its runs are ones that compose. What
they find is for a GPU."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from harness.files import read_json
from harness.records.percentiles import distribution
from harness.running.prepare import prepare
from tests.gpu import __main__ as gpu
from tests.gpu.page import collected, page
from tests.gpu.steps import STEPS, Step, command
from tests.running import ROOT, composed

REVISION = {"revision": "abc", "dirty": False}
SYSTEMS = [step for step in STEPS if any(word.startswith("+system=") for word in step.words)]


def step(code: str, **more: Any) -> Step:
    return Step("one", "whether it does", 20, ("-c", code), **more)


def result(which: Step, out: Path) -> dict[str, Any]:
    return gpu.result(which, "h100x1", out, 1, REVISION)


def test_all_steps_together_take_forty_minutes_at_most() -> None:
    assert sum(step.limit_s for step in STEPS) <= 40 * 60
    assert len({step.name for step in STEPS}) == len(STEPS)


def test_the_docs_count_and_name_the_steps() -> None:
    told = (ROOT / "docs/gpu.md").read_text()
    assert f"can tell: {len(STEPS)} steps" in told
    first_cells = " ".join(re.findall(r"^\| (`.*?) \|", told, re.MULTILINE))
    assert sorted(re.findall(r"\w+", first_cells)) == sorted(step.name for step in STEPS)


def test_without_a_gpu_it_lists_what_would_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu.gpu_monitor, "devices", list)
    monkeypatch.setattr("sys.argv", ["gpu", "--only", "decode", "kunserve"])
    assert gpu.main() == 0
    told = capsys.readouterr().out
    assert told.startswith("No CUDA device is here. 2 steps would run, ")
    assert [line.split()[0] for line in told.splitlines()[1:]] == ["decode", "kunserve"]


def test_a_step_that_passed_is_not_run_again_and_one_that_failed_is(tmp_path: Path) -> None:
    count = f"open({str(tmp_path / 'count')!r}, 'a').write('x'); print('done')"
    assert result(step(count), tmp_path / "one")["status"] == "passed"
    again = result(step(count), tmp_path / "one")
    assert (again["status"], again["last_line"]) == ("passed", "done")
    assert (tmp_path / "count").read_text() == "x"
    other = gpu.result(step(count), "h100x1", tmp_path / "one", 1, {"revision": "def"})
    assert (other["status"], (tmp_path / "count").read_text()) == ("passed", "xx")
    fails = step(f"{count}; raise SystemExit(3)")
    for _ in range(2):
        assert result(fails, tmp_path / "two")["status"] == "failed: exit status 3"
    assert (tmp_path / "count").read_text() == "xxxx"


def test_a_step_ends_at_its_limit_with_what_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    child = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    found = result(Step("one", "", 3, ("-c", parent)), tmp_path / "one")
    assert found["status"] == "failed: longer than 3 s"
    if psutil.pid_exists(number := int(pid.read_text())):
        psutil.Process(number).wait(10)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    told = [
        result(step("", num_gpus=2), tmp_path / "two")["status"],
        result(step("", needs="no_such_package"), tmp_path / "needs")["status"],
    ]
    assert told == [
        "skipped: 2 GPUs are needed, 1 are here", "skipped: no_such_package is not installed",
    ]  # fmt: skip


@pytest.mark.parametrize("step", SYSTEMS, ids=lambda step: step.name)
def test_a_run_of_a_step_is_one_that_the_harness_accepts(step: Step, tmp_path: Path) -> None:
    """Simulated: the same words, but for the engine's own keys."""
    words = [
        word for word in command(step, "h100x1", tmp_path)[2:]
        if not word.startswith(("engine", "hydra.", "tracking", "progress"))
    ]  # fmt: skip
    parts = prepare(composed(*words, "engine=sim", "workload.num_requests=8", "tracking=none"))
    assert len(parts.schedule) == 8


def test_the_page_tells_where_what_and_how_fast(tmp_path: Path) -> None:
    one = result(step("print('3 passed')"), tmp_path / "one")
    (tmp_path / "one" / "run").mkdir()
    summary = {
        "verdict": {"status": "VALID"}, "num_completed": 9, "num_requests": 10,
        "ttft_s": distribution(np.linspace(0.001, 0.1, 100)), "tpot_s": {"p50": None},
    }  # fmt: skip
    (tmp_path / "one" / "run" / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "decode").mkdir()
    decode = {
        "model": "m", "dtype": "bfloat16", "context_tokens": 512,
        "steps": [{"attention": "torch", "num_requests": 16, "step_s": 0.0069, "floor_s": 0.0045}],
    }  # fmt: skip
    (tmp_path / "decode" / "decode.json").write_text(json.dumps(decode))
    facts = {
        "revision": {"revision": "abc", "dirty": True}, "versions": {"torch": "2.13.0"},
        "machine": {"gpus": [{"name": "NVIDIA H200", "driver": "580"}]}, "hardware": "h200x1",
    }  # fmt: skip
    made = collected(facts, [one], tmp_path)
    told = page(made)
    assert "NVIDIA H200 (driver 580); torch 2.13.0; revision abc, with uncommitted changes" in told
    assert "| one | whether it does | passed |" in told
    assert "| torch | 16 | 6.90 | 4.50 |" in told
    assert "| one | VALID | 9 of 10 | 50.5 | 90.1 |  |" in told
    skipped = result(step("", num_gpus=2), tmp_path / "two")
    made = collected(facts, [one, skipped], tmp_path)
    (tmp_path / "gpu.json").write_text(json.dumps(made))
    picture = gpu.picture.draw(tmp_path)
    assert picture.stat().st_size > 0


def test_nothing_is_taken_from_a_run_with_uncommitted_changes(tmp_path: Path) -> None:
    count = step(f"open({str(tmp_path / 'count')!r}, 'a').write('x')")
    for _ in range(2):
        gpu.result(count, "h100x1", tmp_path / "one", 1, REVISION | {"dirty": True})
    assert (tmp_path / "count").read_text() == "xx"


STEPS_HERE = """
import sys
from tests.gpu import __main__ as gpu
from tests.gpu.steps import Step

gpu.STEPS = (
    Step("one", "", 20, ("-c", "open('{count}', 'a').write('1')")),
    Step("two", "", 20, ("-c", '''
import os, time
open("{count}", "a").write("2")
open("{pid}", "w").write(str(os.getpid()))
time.sleep({sleep_s})
''')),
    Step("three", "", 20, ("-c", "open('{count}', 'a').write('3')")),
)
gpu.gpu_monitor.devices = lambda: [{{"name": "NVIDIA H100", "driver": "1", "memory_bytes": 1}}]
gpu.git_revision = lambda: {{"revision": "abc", "dirty": False}}
sys.argv = ["gpu", "--out", "{out}"]
raise SystemExit(gpu.main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_is_killed_in_the_midst_of_a_step_and_goes_on(tmp_path: Path, number: int) -> None:
    """With a stand-in for the GPU. What had passed is not run again, and has its page already; the
    step that was killed does not go on beside the one that resumes."""
    words = {name: tmp_path / name for name in ("count", "pid", "out")}
    count, pid, out = words.values()

    def command(sleep_s: float) -> list[str]:
        return [sys.executable, "-c", STEPS_HERE.format(**words, sleep_s=sleep_s)]

    with subprocess.Popen(command(600), cwd=ROOT, stdout=subprocess.DEVNULL) as begun:
        wait_for(lambda: pid.exists() and pid.read_text() != "")
        begun.send_signal(number)
    wait_for(lambda: not psutil.pid_exists(int(pid.read_text())))
    assert [row["status"] for row in read_json(out / "gpu.json")["steps"]] == ["passed"]
    subprocess.run(command(0), cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    assert count.read_text() == "1223"
    assert [row["status"] for row in read_json(out / "gpu.json")["steps"]] == ["passed"] * 3
    assert "| three |" in (out / "gpu.md").read_text()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
