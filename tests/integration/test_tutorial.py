"""What the tutorial pages say works: their files as they stand, and each of their commands."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from docs.examples.scale_out import ScaleOut
from tests.running import ROOT, run_command

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
QUICK = ("tracking=none", "progress=false", "figure=null")


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, content), in order."""
    return BLOCK.findall((ROOT / "docs" / page).read_text())


def lay_out(page: str, folder: Path) -> None:
    for language, content in blocks(page):
        if language != "sh":
            path = folder / content.splitlines()[0].removeprefix("# ")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)


def run(command: str, folder: Path, *more: str, in_a_process: bool = False) -> str:
    python, module, harness, *words = shlex.split(command)
    assert (python, module, harness) == ("python", "-m", "harness")
    words = [str(next(folder.glob(word))) if "*" in word else word for word in words]
    env = {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"} if in_a_process else None
    done = run_command(*words, *more, folder=folder, env=env, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", ["add-a-system.md", "add-a-model.md", "add-hardware.md"])
def test_the_page_does_what_it_says(page: str, tmp_path: Path) -> None:
    lay_out(page, tmp_path)
    commands = [content.strip() for language, content in blocks(page) if language == "sh"]
    assert commands
    for command in commands:
        shown = run(command, tmp_path, *(() if "plots" in command else QUICK))
        assert "VALID" in shown or ".png" in shown


def test_a_policy_on_the_kit_is_as_short_as_the_page_says() -> None:
    lines = len([line for line in inspect.getsource(ScaleOut).splitlines() if line.strip()])
    assert lines < 60
    assert f"in\n{lines} lines" in (ROOT / "docs/add-a-system.md").read_text()


@pytest.mark.live
def test_the_tutorials_system_runs_live_and_its_order_matters(tmp_path: Path) -> None:
    lay_out("add-a-system.md", tmp_path)
    (policy,) = [content for language, content in blocks("add-a-system.md") if language == "python"]
    assert len(policy.splitlines()) < 60
    few = "workload.num_requests=12 workload.scale.to_rate_per_s=40 system.max_num_seqs=2"
    few += " workload.lengths.scale_output=0.25"
    common = f"python -m harness --config-dir conf +workload=burstgpt {few}"
    live = f"{common} +system=shortest system.error=0 engine=torch"
    shortest = run(live, tmp_path, *QUICK, in_a_process=True)
    assert "shortest x burstgpt" in shortest
    means = {}
    for system in ("vllm", "shortest"):
        shown = run(f"{common} +system={system} engine=sim", tmp_path, *QUICK)
        means[system] = re.search(r"TTFT\s+(\S+ \w+)", shown)
    assert means["vllm"] is not None
    assert means["shortest"] is not None
    assert means["vllm"][1] != means["shortest"][1]


def test_the_first_tasks_script_replays_a_trace_and_reports_it(tmp_path: Path) -> None:
    environment = os.environ | {"OUT": str(tmp_path), "PYTHON": sys.executable}
    script = ["bash", str(ROOT / "docs" / "first-tasks.sh")]
    done = subprocess.run(
        [*script, "report"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "VALID" in (tmp_path / "trace" / "report.html").read_text()
    wrong = subprocess.run([*script, "mode"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "mode is no task; valid: server, trace, model, " in wrong.stderr
