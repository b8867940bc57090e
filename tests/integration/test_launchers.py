"""Sweeps under Hydra's launchers and sweepers that are installed beside it: `.[cluster]`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from harness.records.run_folder import FinishedRun
from tests.running import ROOT, run_command
from tests.slurm import stand_ins

pytestmark = [pytest.mark.live, pytest.mark.alone]

POINT = (
    "+system=vllm", "+workload=burstgpt", "engine=sim", "hardware=a100x1", "model=llama2-7b",
    "workload.num_requests=8", "tracking=none", "progress=false", "figure=null",
)  # fmt: skip
# A Ray of the command's own, whatever else runs here.
ALONE = ("hydra.launcher.ray.init.address=local", "+hydra.launcher.ray.init.num_cpus=1")
# As in docs/cluster.md, on stand-ins for its commands.
SLURM = tuple(f"hydra.launcher.{key}" for key in ("partition=cpu", "cpus_per_task=1", "mem_gb=4"))


@pytest.fixture(autouse=True)
def slurm(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = stand_ins(tmp_path_factory.mktemp("slurm") / "bin")
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")


def swept(folder: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], int]:
    """How the sweep ended, and how many of its runs are complete."""
    where = (f"runs_dir={folder / 'runs'}", f"hydra.sweep.dir={folder / 'sweep'}")
    ended = run_command(*POINT, *where, "-m", *words, env={})
    return ended, len(list(folder.rglob("summary.json")))


each_launcher = pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        ("hydra_joblib_launcher", "joblib", ("hydra.launcher.n_jobs=2",)),
        ("hydra_submitit_launcher", "submitit_local", ()),
        ("hydra_submitit_launcher", "submitit_slurm", SLURM),
        ("hydra_ray_launcher", "ray", ALONE),
    ],
)


@each_launcher
def test_a_bad_point_leaves_the_others_and_the_status_is_2(
    module: str, name: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    pytest.importorskip(f"hydra_plugins.{module}", reason="pip install '.[cluster]'")
    points = "system.max_num_seqs=4,-1,8"
    ended, num_complete = swept(tmp_path, f"hydra/launcher={name}", *words, points)
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert num_complete == 2


@each_launcher
def test_a_search_is_the_same_on_a_launcher(
    module: str, name: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    pytest.importorskip(f"hydra_plugins.{module}", reason="pip install '.[cluster]'")
    asked = ("capacity", "workload.num_requests=2..9", "until", "num_completed<5", *POINT[:5])
    launcher = ("--launcher", name, "--jobs", "3", *words, "--folder", str(tmp_path))
    ended = run_command(*asked, "tracking=none", "figure=null", *launcher, env={})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "num_completed<5 holds up to workload.num_requests=4" in ended.stdout
    made = {path.parent.name for path in tmp_path.rglob("summary.json")}
    assert made == {"2", "3", "4", "5", "7", "9"}


def test_optuna_looks_at_the_objective(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="pip install '.[cluster]'")
    words = ("hydra/sweeper=optuna", "hydra.sweeper.n_trials=2", "objective=ttft_s.mean")
    ended, num_complete = swept(tmp_path, *words, "seed=range(0,100)")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert num_complete == 2


def kill_session(number: int) -> None:
    """Ends the processes of a session, and what they have started since."""
    family = list[psutil.Process]()
    for each in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getsid(each.pid) == number:
                family += [each, *each.children(recursive=True)]
    for each in family:
        with suppress(psutil.Error):
            each.kill()


def test_the_slurm_script_of_the_page(tmp_path: Path) -> None:
    """Its nodes are two raylets of this host."""
    pytest.importorskip("ray", reason="pip install '.[cluster]'")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    given = {
        "SLURM_JOB_NODELIST": "127.0.0.1", "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_PER_TASK": "1",
        "RAY_PORT": str(port), "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    words = (
        "hardware.num_devices=2", "workload.num_requests=6", "engine.num_threads=1",
        "progress=false", "figure=null", f"hydra.run.dir={tmp_path / 'run'}",
    )  # fmt: skip
    short = TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True)  # for sockets
    with (
        short as of_ray,
        (tmp_path / "said").open("w") as said,
        subprocess.Popen(
            ["bash", "docs/examples/cluster.sbatch", *words], cwd=ROOT, stdout=said, stderr=said,
            env=os.environ | given | {"RAY_TMPDIR": of_ray}, start_new_session=True,
        ) as script,
    ):  # fmt: skip
        try:
            status = script.wait(300)
        finally:  # as Slurm does
            kill_session(script.pid)
    assert status == 0, (tmp_path / "said").read_text()
    finished = FinishedRun.load(tmp_path / "run")
    assert finished.summary["num_completed"] == 6
    assert len(finished.manifest["engine"]["nodes"]) == 2
