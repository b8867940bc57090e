"""Live runs on one device never overlap; simulated ones lock nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.records import gpu_monitor
from harness.running.device_lock import VARIABLE, devices_of, held
from harness.running.prepare import prepare
from tests.running import ROOT, composed

HOLDER = """
import sys
from harness.running.device_lock import held
with held(["cpu"], print):
    print("held", flush=True)
    sys.stdin.read()
"""
RUN = ("+system=vllm", "+workload=burstgpt", "tracking=none")


def devices(*words: str) -> list[str]:
    parts = prepare(composed(*RUN, *words))
    return devices_of(parts.engine, parts.config["engine"])


def gpus(monkeypatch: pytest.MonkeyPatch, shown: str | None) -> None:
    monkeypatch.setattr(gpu_monitor, "devices", lambda: [{}, {}])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)


def test_only_an_engine_of_this_host_occupies_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, None)
    assert devices("engine=sim") == []
    assert devices("engine=openai", "engine.url=http://127.0.0.1:1/v1") == []
    assert devices("engine=torch") == ["gpu-0", "gpu-1"]
    assert devices("engine=torch", "engine.device=cpu") == ["cpu"]


@pytest.mark.parametrize(
    ("shown", "expected"), [("1", ["gpu-1"]), ("1,0", ["gpu-0", "gpu-1"]), ("", ["cpu"])]
)
def test_a_run_occupies_the_gpus_that_it_is_shown(
    monkeypatch: pytest.MonkeyPatch, shown: str, expected: list[str]
) -> None:
    gpus(monkeypatch, shown)
    assert devices("engine=torch") == expected


def test_a_device_is_waited_for_and_got_when_its_holder_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    told: list[str] = []
    got, waits = threading.Event(), threading.Event()

    def announce(line: str) -> None:
        told.append(line)
        waits.set()

    def take() -> None:
        with held(["cpu"], announce):
            got.set()

    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {VARIABLE: str(tmp_path)},
    ) as other:  # fmt: skip
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with held(["gpu-0"], announce):  # another device is free
            assert not told
        taking = threading.Thread(target=take)
        taking.start()
        assert waits.wait(60)
        assert not got.is_set()
        other.kill()
        taking.join(60)
    assert got.is_set()
    assert told == [f"waiting for cpu: process {other.pid} has a live run on it"]


def test_locks_that_cannot_be_made_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file"))
    with (
        pytest.raises(UsageError, match=f"cannot lock cpu in .*; {VARIABLE} names another folder"),
        held(["cpu"], print),
    ):
        pass
