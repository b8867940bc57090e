"""The coordinator as the process that it is: killed, restarted, refused."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.errors import UsageError
from systems.aqua.coordinator.__main__ import main
from systems.aqua.coordinator.process import CoordinatorProcess
from systems.aqua.coordinator.topology import Device, Topology
from tests.running import ROOT

GIB = 2**30
TOPOLOGY = {
    "devices": {f"gpu{i}": {"node": 0, "memory_bytes": 80 * GIB} for i in range(2)},
    "pairs": {"gpu1": "gpu0"},
}


def command(folder: Path, *more: str, topology: Any = TOPOLOGY) -> list[str]:
    file = folder / "topology.json"
    file.write_text(topology if isinstance(topology, str) else json.dumps(topology))
    words = ["--topology", str(file), "--state", str(folder / "state")]
    words += ["--heartbeat-timeout-s", "60", *more]
    return [sys.executable, "-m", "systems.aqua.coordinator", *words]


@contextmanager
def running(folder: Path) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    words = command(folder, "--port", "0")
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix("coordinator at ").strip()
        with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
            yield process, client
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def refused(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words[3:]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert reason in said


def test_a_port_that_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        reason = f"port {port} of 127.0.0.1 cannot be had"
        refused(command(tmp_path, "--port", str(port)), reason, capsys)
    assert not (tmp_path / "state").exists()


def test_the_plugins_client_needs_nothing_of_the_harness() -> None:
    """The plug-in's package has the coordinator's folder, and not the harness."""
    code = (
        "import sys, systems\nbefore = set(sys.modules)\n"
        "import systems.aqua.coordinator.http_client\n"
        "print([name for name in sys.modules.keys() - before if name.startswith('harness')])"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_its_state_survives_kill_9(tmp_path: Path) -> None:
    with running(tmp_path) as (process, client):
        client.put("/holders/p", json={"device": "gpu0"})
        client.put("/holders/c", json={"device": "gpu1"})
        client.put("/leases/l", json={"holder": "p", "num_bytes": 30 * GIB})
        for i in range(20):
            body = {"holder": "c", "num_bytes": GIB + i}
            assert client.put(f"/allocations/{i}", json=body).json() == {"lease": "l"}
        client.delete("/allocations/3", params={"holder": "c"})
        client.post("/leases/l/reclaim", json={"holder": "p", "keep_bytes": 5 * GIB})
        before = client.get("/status").json()
        process.send_signal(signal.SIGKILL)
        process.wait()
    with running(tmp_path) as (_, client):
        assert client.get("/status").json() == before
        again = client.delete("/allocations/3", params={"holder": "c"})  # its answer was lost, say
        assert again.status_code == 200
        assert client.get("/status").json() == before
        assert client.get("/leases/l").json()["overdrawn_bytes"] > 0


def test_what_it_answered_is_there_after_a_kill_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    """Answered requests are kept; the one under way is kept whole or not at all, and sent again."""
    answered: list[str] = []

    def stream(client: httpx.Client, process: subprocess.Popen[str]) -> None:
        try:
            for i in range(10_000):
                if i == 40:
                    threading.Thread(target=process.kill).start()
                body = {"holder": "c", "num_bytes": 1}
                assert client.put(f"/allocations/{i}", json=body).json() == {"lease": "l"}
                answered.append(str(i))
        except httpx.TransportError:
            return

    with running(tmp_path) as (process, client):
        client.put("/holders/p", json={"device": "gpu0"})
        client.put("/holders/c", json={"device": "gpu1"})
        client.put("/leases/l", json={"holder": "p", "num_bytes": GIB})
        stream(client, process)
        process.wait()
    assert 40 <= len(answered) < 10_000
    with running(tmp_path) as (_, client):
        status = client.get("/status").json()
        kept = set(status["allocations"])
        under_way = str(len(answered))
        assert kept - {under_way} == set(answered)
        again = client.put(f"/allocations/{under_way}", json={"holder": "c", "num_bytes": 1})
        assert again.json() == {"lease": "l"}
        lease = client.get("/leases/l").json()
        assert lease["allocated_bytes"] == len(answered) + 1


def test_a_run_starts_it_again_where_it_died() -> None:
    process = CoordinatorProcess(Topology({"gpu0": Device(0, GIB)}, {}), 0, 60.0)
    try:
        first, port = process.pid, process.port
        os.kill(first, signal.SIGKILL)
        while process.restarts == 0:  # until the death is seen
            process.revive()
        assert (process.port, process.restarts) == (port, 1)
        assert process.pid != first
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            assert client.get("/status").status_code == 200
    finally:
        process.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_run_without_a_coordinator_says_why() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"no coordinator: port {port} of 127.0.0.1 cannot"):
            CoordinatorProcess(Topology({"gpu0": Device(0, GIB)}, {}), port, 60.0)


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    words = command(tmp_path, "--port", "0", "--with-parent")
    process = subprocess.Popen(
        words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline().startswith("coordinator at")
    process.stdin.close()
    assert process.wait(timeout=30) == 0
    process.stdout.close()


def test_it_listens_on_loopback_alone_has_its_state_file_alone_and_ends_when_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(tmp_path) as (process, client):
        assert client.base_url.host == "127.0.0.1"
        port = client.base_url.port
        assert port is not None
        with socket.socket() as other, pytest.raises(ConnectionRefusedError):
            other.connect(("127.0.0.2", port))  # an address of this machine, but not that one
        refused(command(tmp_path, "--port", "0"), "is in use by another coordinator", capsys)
        assert client.get("/status").status_code == 200
        process.terminate()
        assert process.wait(timeout=30) in (0, -signal.SIGTERM)


@pytest.mark.parametrize(
    ("topology", "more", "reason"),
    [
        ("{", [], "is damaged"),
        ("[]", [], "holds no JSON object"),
        ({"devices": {"gpu0": {"node": 0}}, "pairs": {}}, [], "gpu0.memory_bytes is missing"),
        ({"devices": {}, "pairs": {}, "links": {}}, [], "valid keys: devices, pairs"),
        ({"devices": {"gpu0": {"gpu": 0}}, "pairs": {}}, [], "valid keys: node, memory_bytes"),
        (
            {"devices": {"gpu0": {"node": 0, "memory_bytes": "80 GB"}}, "pairs": {}}, [],
            "devices.gpu0.memory_bytes: Value '80 GB'",
        ),
        ({"devices": {"gpu0": {"node": -1, "memory_bytes": 8}}, "pairs": {}}, [], "node=-1; valid"),
        ({"devices": {}, "pairs": {"gpu0": "gpu1"}}, [], "place 'gpu0' of a pair is unknown"),
        (TOPOLOGY, ["--port", "70000"], "port 70000; valid: 0 (any) to 65535"),
        (TOPOLOGY, ["--port", "0", "--heartbeat-timeout-s", "0"], "heartbeat_timeout_s=0; valid"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], topology: Any, more: list[str], reason: str
) -> None:
    refused(command(tmp_path, *more, topology=topology), reason, capsys)
    assert not (tmp_path / "state").exists()
