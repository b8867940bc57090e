"""docs/cluster.md on two hosts that are network namespaces of this one, with a slow link between
them. Linux, as root, with `ip` and `tc`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness.records.journal import JOURNAL
from harness.records.run_folder import FinishedRun
from tests.running import ROOT, command

pytest.importorskip("ray", reason="Ray is not installed: pip install '.[cluster]'")

pytestmark = [pytest.mark.live, pytest.mark.alone]

HOSTS = {"harness-one": "10.77.0.1", "harness-two": "10.77.0.2"}
ONE, TWO = HOSTS
LINK_BYTES_PER_S = 5e6
BURST_BYTES = 64 * 1024
RAY = (sys.executable, "-m", "ray.scripts.scripts")
NODE = ("--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats")
JOB = (
    "+system=aegaeon", "+workload=burstgpt", "workload.num_requests=6",
    "workload.lengths.scale_output=0.3", "engine.device=cpu", "engine.num_threads=1",
    "+engine.cluster=ray", "hardware=local", "hardware.num_devices=2",
    f"+hardware.nodes=[{HOSTS[TWO]},{HOSTS[ONE]}]", "tracking=none", "progress=false",
    "figure=null",
)  # fmt: skip


def done(*words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=300, **how)


def on(host: str, *words: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return done("ip", "netns", "exec", host, *words, cwd=ROOT, env=os.environ | environment)


def linked() -> str:
    """Why there can be no two hosts with a link between them; empty: there are."""
    if sys.platform != "linux" or os.getuid() or not (shutil.which("ip") and shutil.which("tc")):
        return "needs Linux, root, ip and tc"
    ends = dict(zip(HOSTS, ("harness0", "harness1"), strict=True))
    veth = ("type", "veth", "peer", "name", ends[TWO], "netns", TWO)
    steps = [["ip", "netns", "add", host] for host in HOSTS]
    steps.append(["ip", "link", "add", ends[ONE], "netns", ONE, *veth])
    for host, end in ends.items():
        steps += [
            ["ip", "-n", host, "link", "set", "lo", "up"],
            ["ip", "-n", host, "addr", "add", f"{HOSTS[host]}/24", "dev", end],
            ["ip", "-n", host, "link", "set", end, "up"],
            ["tc", "-n", host, "qdisc", "add", "dev", end, "root", "tbf",
             "rate", f"{LINK_BYTES_PER_S * 8:.0f}bit", "burst", str(BURST_BYTES),
             "latency", "400ms"],
        ]  # fmt: skip
    for step in steps:
        if (ended := done(*step)).returncode:
            return f"{' '.join(step)}: {ended.stderr.strip()}"
    return ""


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """The environment of whoever has the token of a Ray cluster on two hosts."""
    home = tmp_path_factory.mktemp("home")
    known = {"HOME": str(home), "RAY_AUTH_MODE": "token", "RAY_ADDRESS": f"{HOSTS[ONE]}:6379"}
    try:
        if why := linked():
            pytest.skip(why)
        made = on(ONE, *RAY, "get-auth-token", "--generate", environment=known)
        assert (home / ".ray" / "auth_token").read_text() in made.stdout
        starts = {
            ONE: ("--head", "--port=6379", f"--temp-dir={home / 'r'}", "--include-dashboard=false"),
            TWO: (f"--address={HOSTS[ONE]}:6379",),
        }
        for host, words in starts.items():
            own = f"--node-ip-address={HOSTS[host]}"
            ended = on(host, *RAY, "start", *words, own, *NODE, environment=known)
            assert ended.returncode == 0, ended.stdout + ended.stderr
        yield known
    finally:
        for host in HOSTS:
            for pid in done("ip", "netns", "pids", host).stdout.split():
                os.kill(int(pid), signal.SIGKILL)
            done("ip", "netns", "del", host)


def test_kv_crosses_the_link_at_its_pace(token: Mapping[str, str], tmp_path: Path) -> None:
    ended = on(ONE, *command(*JOB, f"hydra.run.dir={tmp_path / 'run'}"), environment=token)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    finished = FinishedRun.load(tmp_path / "run")
    assert finished.summary["num_completed"] == 6
    nodes = finished.manifest["engine"]["nodes"]
    assert [node["address"] for node in nodes] == [HOSTS[TWO], HOSTS[ONE]], "as the profile says"
    first: dict[int, float] = {}  # of each request's swap-ins: bytes that came from the other host
    for event in sorted(finished.events().to_pylist(), key=lambda event: event["start_s"]):
        fields = json.loads(event["fields"])
        if event["kind"] == "swap_in" and fields["request_id"] not in first:
            first[fields["request_id"]] = fields["bytes"]
            took_s = event["end_s"] - event["start_s"]
            assert took_s >= (fields["bytes"] - 2 * BURST_BYTES) / LINK_BYTES_PER_S
    assert max(first.values()) > 10 * BURST_BYTES, "which the link had to carry"


def test_whoever_has_no_token_is_refused(token: Mapping[str, str], tmp_path: Path) -> None:
    """With none and with another one, both at once: each waits for Ray's own time limit."""

    def refused(own: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        home = tmp_path / own["RAY_AUTH_MODE"]
        where = {"HOME": str(home), "HARNESS_DEVICE_LOCKS": str(home / "locks")}
        words = command(*JOB, f"hydra.run.dir={home / 'run'}")
        return on(ONE, *words, environment={**token, **where, **own})

    other = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 32}
    with ThreadPoolExecutor() as both:
        all_ended = list(both.map(refused, [{"RAY_AUTH_MODE": "disabled"}, other]))
    for ended in all_ended:
        assert ended.returncode == 2, ended.stdout + ended.stderr
        assert "error: no Ray cluster that can be used" in ended.stderr
        assert "Traceback" not in ended.stderr
    assert not list(tmp_path.glob("*/run"))


def test_the_other_host_serves_alone_where_the_link_breaks(
    token: Mapping[str, str], tmp_path: Path
) -> None:
    """The last test here: Ray has lost a host. Requests come for longer than the loss is unknown.
    No message says that the other host is gone: packets find no way to it."""
    asked = ("+system=serverlessllm", *JOB[1:], "workload.scale.to_rate_per_s=0.25")
    words = command(*asked, f"hydra.run.dir={tmp_path / 'run'}")
    journal = tmp_path / "run" / JOURNAL
    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(on, ONE, *words, environment=token)
        while not (journal.exists() and b'"load"' in journal.read_bytes()):  # a model has come
            assert not running.done(), running.result()
            time.sleep(0.1)
        assert not done("ip", "-n", TWO, "link", "set", "harness1", "down").returncode
        ended = running.result()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    finished = FinishedRun.load(tmp_path / "run")
    assert finished.summary["num_completed"] == 6
    assert "lost" in finished.events()["kind"].to_pylist()
