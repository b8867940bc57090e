"""Claims of a folder: one holder at a time, and the dead ones' are taken over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness.errors import RunError
from harness.records import claim
from harness.records.claim import Claimed, claimed
from tests.running import ROOT

COUNTER = """
import sys
from pathlib import Path
from harness.records.claim import claimed
count = Path(sys.argv[1])
for _ in range(int(sys.argv[2])):
    with claimed(count.with_name("claim"), wait=True):
        value = int(count.read_text())
        count.write_text(str(value + 1))
"""


def of_another_host(path: Path, unsigned_s: float) -> None:
    """Leaves a claim that was last signed so many seconds ago, on a host that is not this one."""
    holder = {"process": 1, "host": "far", "place": "far", "started_s": 0.0, "token": "token-1"}
    path.write_text(json.dumps(holder))
    now_s = path.stat().st_mtime
    os.utime(path, (now_s - unsigned_s, now_s - unsigned_s))


def test_processes_that_wait_for_a_claim_have_it_one_at_a_time(tmp_path: Path) -> None:
    count = tmp_path / "count"
    count.write_text("0")
    command = [sys.executable, "-c", COUNTER, str(count), "20"]
    for process in [subprocess.Popen(command, cwd=ROOT) for _ in range(4)]:
        assert process.wait(60) == 0
    assert count.read_text() == "80"
    assert list(tmp_path.iterdir()) == [count]


def test_a_claim_that_another_host_signs_is_kept(tmp_path: Path) -> None:
    of_another_host(tmp_path / "claim", unsigned_s=claim.STALE_S - 30)
    with pytest.raises(Claimed, match="process 1 on far"), claimed(tmp_path / "claim", wait=False):
        pass


def test_a_claim_that_another_host_has_ceased_to_sign_is_taken_over(tmp_path: Path) -> None:
    of_another_host(tmp_path / "claim", unsigned_s=claim.STALE_S + 30)
    with claimed(tmp_path / "claim", wait=False):
        assert json.loads((tmp_path / "claim").read_text())["process"] == os.getpid()
    assert not list(tmp_path.iterdir())


def test_who_died_while_taking_a_claim_over_is_taken_over_too(tmp_path: Path) -> None:
    of_another_host(tmp_path / "claim", unsigned_s=claim.STALE_S + 30)
    of_another_host(tmp_path / "claim-token-1", unsigned_s=claim.STALE_S + 30)
    with claimed(tmp_path / "claim", wait=False):
        pass
    assert not list(tmp_path.iterdir())


def test_a_stale_claim_that_another_process_takes_over_is_left_to_it(tmp_path: Path) -> None:
    of_another_host(tmp_path / "claim", unsigned_s=claim.STALE_S + 30)
    of_another_host(tmp_path / "claim-token-1", unsigned_s=0)
    with pytest.raises(Claimed), claimed(tmp_path / "claim", wait=False):
        pass


@pytest.mark.parametrize(("unsigned_s", "taken"), [(0, False), (claim.STALE_S + 30, True)])
def test_a_claim_that_was_never_written_goes_by_its_age(
    tmp_path: Path, unsigned_s: float, taken: bool
) -> None:
    path = tmp_path / "claim"
    of_another_host(path, unsigned_s)
    times = path.stat()
    path.write_text("")
    os.utime(path, (times.st_atime, times.st_mtime))
    try:
        with claimed(path, wait=False):
            assert taken
    except Claimed:
        assert not taken


def test_a_process_of_this_host_with_the_number_of_a_dead_one_is_not_its_holder(
    tmp_path: Path,
) -> None:
    path = tmp_path / "claim"
    with claimed(path, wait=False):
        said = json.loads(path.read_text())
    path.write_text(json.dumps(said | {"started_s": said["started_s"] - 60}))
    with claimed(path, wait=False):
        pass


def test_who_lost_a_claim_is_told_and_leaves_it_to_its_new_holder(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    holding = claimed(path, wait=False)
    holding.__enter__()
    path.unlink()
    of_another_host(path, unsigned_s=0)
    with pytest.raises(RunError, match="was taken over"):
        holding.__exit__(None, None, None)
    assert json.loads(path.read_text())["host"] == "far"


def test_a_holder_signs_its_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "BEAT_S", 0.01)
    path, signed = tmp_path / "claim", threading.Event()
    with claimed(path, wait=False):
        os.utime(path, (0, 0))
        for _ in range(1000):
            if path.stat().st_mtime > 0:
                break
            signed.wait(0.01)
        assert path.stat().st_mtime > 0
