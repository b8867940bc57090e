"""A sweep's points tell the process that began it how they ended, whatever process runs them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from harness.__main__ import known_objective
from harness.errors import UsageError
from harness.records.run_folder import FinishedRun
from harness.running import sweep_points
from harness.running.run import Command, run
from tests.running import ROOT, composed

SIM = (
    "+system=vllm", "+workload=burstgpt", "engine=sim", "hardware=a100x1", "model=llama2-7b",
    "workload.num_requests=8", "tracking=none", "progress=false", "figure=null",
)  # fmt: skip
CHOICES = {"system": "vllm", "workload": "burstgpt", "engine": "sim", "model": "llama2-7b"}


@pytest.fixture(autouse=True)
def no_sweep_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_points, "failed", [])


def test_a_failure_in_another_process_reaches_the_one_that_began_the_sweep(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from hydra.core.hydra_config import HydraConfig;"
        "from harness.running.sweep_points import note_failure;"
        "from hydra.conf import HydraConf, JobConf; from omegaconf import OmegaConf;"
        "job = HydraConf(job=JobConf(num=int(sys.argv[1])));"
        "HydraConfig.instance().set_config(OmegaConf.create({'hydra': OmegaConf.structured(job)}));"
        f"note_failure(Path({str(tmp_path)!r}), 3)"
    )
    for number, sweep_id in enumerate(("one", "one", "other")):
        environment = os.environ | {sweep_points.SWEEP_ID_VARIABLE: sweep_id}
        command = [sys.executable, "-c", code, str(number)]
        subprocess.run(command, env=environment, check=True, cwd=ROOT)
    sweep_points.collect_failures(tmp_path, "one")
    assert sweep_points.failed == [3, 3]
    assert len(list(tmp_path.iterdir())) == 1  # what the other sweep's points noted


@pytest.mark.parametrize("name", ["run", "a (b), c=d", 'it\'s "{e}"', "a\\b\\"])
def test_a_folder_of_any_name_is_what_hydra_reads(name: str, tmp_path: Path) -> None:
    parser = OverridesParser.create()
    words = (
        sweep_points.run_dir_word(tmp_path / name),
        sweep_points.sweep_dir_word(f"{tmp_path / name}"),
    )
    for word in words:
        assert parser.parse_override(word).value() == str(tmp_path / name)
        assert sweep_points.named_folder(word) == str(tmp_path / name)
    assert sweep_points.named_folder(f"runs_dir={name}") == name


def test_a_sweep_without_failures_has_none_and_leaves_nothing(tmp_path: Path) -> None:
    sweep_points.collect_failures(tmp_path, "one")
    assert sweep_points.failed == []
    assert not list(tmp_path.iterdir())


def test_the_objective_is_a_number_of_the_summary(tmp_path: Path) -> None:
    def objective(name: str) -> float | None:
        words = (*SIM, f"objective={name}")
        return run(composed(*words), Command(tmp_path / "run", True, CHOICES, words))

    assert objective("null") is None
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert objective("ttft_s.mean") == summary["ttft_s"]["mean"]
    name, row = next(iter(summary["models"].items()))
    assert objective(f"models.{name}.num_requests") == row["num_requests"]
    with pytest.raises(UsageError, match=r"summary.json has no ttft_s.p7; valid in place of p7"):
        objective("ttft_s.p7")


def test_an_objective_that_no_run_has_is_told_before_the_run(tmp_path: Path) -> None:
    words = (*SIM, "objective=tfft_s.mean")
    with pytest.raises(UsageError, match=r"objective=tfft_s.mean: .* begins with one of .*ttft_s,"):
        run(composed(*words), Command(tmp_path / "run", True, CHOICES, words))
    assert not list(tmp_path.iterdir())


def test_an_invalid_run_has_no_objective(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Optuna's sweeper then counts it as failed; a study that is told a NaN breaks."""
    monkeypatch.setattr(FinishedRun, "invalid", "the client was late")
    words = (*SIM, "objective=ttft_s.mean")
    command = Command(tmp_path / "run", True, CHOICES, words)
    assert run(composed(*words), command) is None


def test_a_sweeper_without_an_objective_is_refused_before_its_trials() -> None:
    known_objective(["-m", "hydra/sweeper=optuna", "objective=ttft_s.mean"])
    known_objective(["-m", "seed=0,1"])
    with pytest.raises(UsageError, match="give objective=NAME"):
        known_objective(["-m", "hydra/sweeper=optuna", "seed=0,1"])


ELSEWHERE = """
import pickle, sys
from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from harness import __main__ as command
from harness.running import run

class Elsewhere(BasicLauncher):  # points run in other processes, as far as this one can tell
    def launch(self, job_overrides, initial_job_idx):
        if sys.argv[0] == "bug":
            return pickle.loads(pickle.dumps(super().launch(job_overrides, initial_job_idx)))
        raise ConnectionError("no cluster")

def broken(config, asked):
    return 1 // 0

run.run = broken
Plugins.is_in_toplevel_plugins_module = lambda self, name: True
Plugins.instance().register(Elsewhere)
ConfigStore.instance().store("elsewhere", {"_target_": "__main__.Elsewhere"}, "hydra/launcher")
command.main()
"""


@pytest.mark.parametrize(
    ("what", "status", "says"),
    [
        ("bug", 1, "in broken\n"),  # of the traceback
        ("reach", 2, "error: no cluster\n"),
    ],
)
def test_a_bug_in_another_process_is_no_wrong_command_and_a_launchers_own_error_is(
    tmp_path: Path, what: str, status: int, says: str
) -> None:
    words = [*SIM, "hydra/launcher=elsewhere", "-m", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    script = ELSEWHERE.replace("command.main()", f"sys.argv = {[what, *words]}\ncommand.main()")
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == status, ended.stderr
    assert says in ended.stderr
    assert ("Traceback" in ended.stderr) == (what == "bug")
