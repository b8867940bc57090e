"""The user and password of engine.url reach the server, and no file, no table and no W&B run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.selftest.golden_server import GoldenServer
from harness.selftest.script import Script
from tests.running import run_command

SECRET = "pa55w0rd-of-ann"
TRACE = "arrival_s,model,prompt_tokens,output_tokens\n" + "0,m,8,2\n" * 3


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "t.csv"
    path.write_text(TRACE)
    return f"workload.path={path}"


def holding_the_secret(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if SECRET.encode() in path.read_bytes()]


@pytest.mark.parametrize("sweep", [False, True])
def test_what_a_run_leaves_has_no_credentials(tmp_path: Path, trace: str, sweep: bool) -> None:
    where = ["-m", f"hydra.sweep.dir={tmp_path / 'runs'}", "seed=0,1"]
    one = [f"hydra.run.dir={tmp_path / 'runs' / 'one'}"]
    meanwhile: list[Path] = []

    def script(_: object) -> Script:
        meanwhile.extend(holding_the_secret(tmp_path))
        return Script()

    with GoldenServer(script) as server:
        done = run_command(
            "+system=vllm", "+workload=trace", trace, "engine=openai",
            f"engine.url={server.url.replace('://', f'://ann:{SECRET}@')}", "figure=null",
            "tracking.mode=offline", "progress=false", *(where if sweep else one),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert all("authorization: basic" in answer.head for answer in server.answers)
    assert SECRET not in done.stdout + done.stderr
    assert not [*meanwhile, *holding_the_secret(tmp_path)]
    manifests = list((tmp_path / "runs").glob("*/manifest.json"))
    assert len(manifests) == (2 if sweep else 1)
    overrides = json.loads(manifests[0].read_text())["overrides"]
    (url,) = (word for word in overrides if word.startswith("engine.url="))
    assert url.replace("\\", "") == f"engine.url={server.url}"  # a sweep escapes colons
    assert list((tmp_path / "runs").rglob("*.wandb"))  # W&B was there to be told


@pytest.mark.parametrize("host", ["127.0.0.1:1", "127.0.0.1:99999", "no such host"])
def test_a_wrong_url_is_refused_unseen_and_leaves_nothing(
    tmp_path: Path, trace: str, host: str
) -> None:
    done = run_command(
        "+system=vllm", "+workload=trace", trace, "engine=openai", "tracking=none", "figure=null",
        f"engine.url='http://ann:{SECRET}@{host}/v1'", f"hydra.run.dir={tmp_path / 'runs' / 'one'}",
    )  # fmt: skip
    assert done.returncode == 2
    assert "error: engine.url" in done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert not (tmp_path / "runs").exists()
