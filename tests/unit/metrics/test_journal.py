"""What a run leaves if it is killed, interrupted or out of disk at any moment."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import RunError, UsageError
from harness.records import journal as journals
from harness.records.closed_loop import CLOSED_LOOP
from harness.records.journal import JOURNAL, Journal, entries, replay
from harness.records.record import Chunk, Recorder, Reported, Segment
from harness.records.recover import recover
from harness.records.run_folder import FinishedRun, RunFolder
from harness.records.tables import events_table, requests_table
from harness.request import Request
from harness.running import interrupts
from harness.schedule import Schedule
from tests.running import run_here
from tests.unit.metrics.service import PROVENANCE
from tests.unit.test_sessions import AGENT

LIVE = (
    "+system='null'", "+workload=azure_code", "engine=none", "figure=null", "data.dir=null",
    "data.download=false", "workload.num_requests=20", "workload.scale.to_rate_per_s=100",
)  # fmt: skip


def requests() -> list[Request]:
    return [Request(i, 0.1 * i, "m", 10, 3) for i in range(4)]


def serve(recorder: Recorder) -> None:
    """Of four requests one completes, one fails, one gets a chunk, one is never sent."""
    first, second, third, _ = [record.request for record in recorder.records.values()]
    for request in (first, second, third):
        recorder.sent(request, request.arrival_s + 0.001)
    recorder.segment([first, second], Segment(0.5, 2, 0.25, 0.125), "a")
    recorder.preempted(second, "a", 0.6)
    recorder.failed(second, "the server said 500 \\ud800")
    recorder.segment([first], Chunk(1.5, 1), "a")
    recorder.completed(first)
    recorder.reported(first, Reported(prompt_tokens=11, cached_tokens=4, surplus_tokens=2))
    recorder.reported(second, Reported(buffered=True))
    recorder.segment([third], Chunk(2.0, 2), "b")
    recorder.event("switch", "a", 1.0, 1.5, model="m", bytes=7)


def kept(path: Path) -> Recorder:
    recorder = Journal(requests(), path, announce=pytest.fail)
    recorder.start()
    serve(recorder)
    recorder.close()
    return recorder


def test_a_journal_has_all_that_was_recorded(tmp_path: Path) -> None:
    recorder = kept(tmp_path / JOURNAL)
    plain, again = Recorder(requests()), Recorder(requests())
    serve(plain)
    replay(tmp_path / JOURNAL, again)
    for found in (recorder, again):
        assert requests_table(found).equals(requests_table(plain))
        assert events_table(found).equals(events_table(plain))


def test_a_half_written_batch_at_the_end_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "BATCH", 5)
    path = tmp_path / JOURNAL
    kept(path)
    whole, every = path.read_bytes(), [what for what, *_ in entries(path)]
    batches = {len(every)}
    for cut in range(1, len(whole)):
        path.write_bytes(whole[:-cut])
        there = [what for what, *_ in entries(path)]
        assert there == every[: len(there)]
        batches.add(len(there))
    assert batches == {len(every), *range(0, len(every), 5)}


def test_a_damaged_batch_and_what_follows_it_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL
    kept(path)
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    assert not list(entries(path))


def test_a_journal_of_another_format_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_bytes(b"\xdb")
    with pytest.raises(UsageError, match="is no journal of this version"):
        list(entries(tmp_path / JOURNAL))


def test_a_journal_that_cannot_be_written_is_told_and_costs_the_run_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    recorder = Journal(requests(), tmp_path / "no" / JOURNAL, said.append)
    recorder.start()
    serve(recorder)
    recorder.close()
    assert ["No such file or directory" in line for line in said] == [True]
    assert recorder.num_done == 2


def test_a_live_run_has_a_journal_while_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off where a kill -9 would at the latest: before anything but the journal is written."""
    taken = tmp_path / "taken"

    def killed(folder: RunFolder, table: Any) -> None:
        end = time.monotonic() + 60
        while not any(what == "segment" for what, *_ in entries(folder.path / JOURNAL)):
            assert time.monotonic() < end, "no token reached the journal"
            time.sleep(0.01)
        if not taken.exists():  # it is called once more for the aborted run
            taken.mkdir()
            for name in ("manifest.json", "schedule.parquet", "config.yaml", JOURNAL):
                (taken / name).write_bytes((folder.path / name).read_bytes())
        raise RunError("cut off")

    monkeypatch.setattr(journals, "INTERVAL_S", 0.01)
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "write_requests", killed)
        with pytest.raises(RunError, match="cut off"):
            run_here(tmp_path / "run", *LIVE)
    with pytest.raises(UsageError, match=r"python -m harness recover"):
        FinishedRun.load(taken)
    recorder = recover(taken)
    assert recorder.num_started > 0
    manifest = json.loads((taken / "manifest.json").read_text())
    assert (manifest["status"], manifest["reason"][:6]) == ("aborted", "killed")
    assert manifest["ended_utc"] >= manifest["started_utc"]
    with pytest.raises(UsageError, match="has been recovered before"):
        recover(taken)


def test_a_complete_run_and_a_simulation_leave_no_journal(tmp_path: Path) -> None:
    run_here(tmp_path / "run", *LIVE)
    assert not (tmp_path / "run" / JOURNAL).exists()
    with pytest.raises(UsageError, match="was not killed: its manifest says complete"):
        recover(tmp_path / "run")
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    del manifest["status"]
    (tmp_path / "run/manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match="is damaged: it has no status"):
        recover(tmp_path / "run")


def test_of_a_run_that_was_killed_before_it_was_served_the_manifest_alone_is_settled(
    tmp_path: Path,
) -> None:
    folder = RunFolder(tmp_path)
    folder.write_manifest({"status": "begun", "engine": {}})
    (tmp_path / ".schedule.4711.partial.parquet").write_text("half")
    assert recover(tmp_path).num_tokens == 0
    assert folder.manifest()["status"] == "aborted"
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_in_a_recovered_closed_loop_a_request_arrived_when_it_was_sent(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_manifest({"status": "begun", "engine": {}})
    rows = {"arrival_s": np.array([0.0, 0.1]), "model": ["m", "m"]}
    lengths = {name: np.array([10, 10]) for name in ("prompt_tokens", "output_tokens")}
    folder.write_schedule(Schedule(**rows, **lengths, provenance=PROVENANCE))
    made = Schedule(**rows, **lengths, provenance=PROVENANCE).requests()
    recorder = Journal(made, tmp_path / JOURNAL, announce=pytest.fail)
    recorder.start()
    recorder.event(CLOSED_LOOP, "client", 0.0, 0.0, concurrency=1)
    recorder.sent(made[0], 0.0)
    recorder.sent(made[1], 7.0)
    recorder.close()
    records = recover(tmp_path).records
    assert [record.request.arrival_s for record in records.values()] == [0.0, 7.0]


def test_in_a_recovered_run_a_branch_arrived_when_it_was_sent(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_manifest({"status": "begun", "engine": {}})
    folder.write_schedule(AGENT)
    recorder = Journal(AGENT.requests(), tmp_path / JOURNAL, announce=pytest.fail)
    recorder.start()
    recorder.sent(recorder.records[0].request, 0.5)
    recorder.sent(recorder.records[1].request, 7.0)
    recorder.close()
    records = recover(tmp_path).records
    assert [records[i].request.arrival_s for i in (0, 1)] == [0.0, 7.0]


@pytest.mark.parametrize("last", ["write_summary", "write_requests", "complete"])
def test_no_run_is_complete_whose_last_write_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    def full(folder: RunFolder, content: Any) -> None:
        raise RunError(f"cannot write {folder.path}: No space left on device")

    def full_in_the_end(folder: RunFolder, content: Any) -> None:
        if content["status"] == "complete":
            full(folder, content)
        folder._write_json("manifest.json", content)

    if last == "complete":
        monkeypatch.setattr(RunFolder, "write_manifest", full_in_the_end)
    else:
        monkeypatch.setattr(RunFolder, last, full)
    with pytest.raises(RunError, match="No space left on device"):
        run_here(tmp_path / "run", *LIVE)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["status"] == "aborted"
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.fixture
def listening() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in interrupts.SIGNALS}
    for number in before:
        signal.signal(number, signal.SIG_DFL)
    interrupts.listen()
    yield
    interrupts._heard.clear()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("number", interrupts.SIGNALS)
def test_an_interrupt_that_a_callback_loses_ends_the_run_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    class Collected:
        def __del__(self) -> None:
            os.kill(os.getpid(), number)
            for _ in range(1000):  # the handler runs in here, where Python drops what it raises
                pass

    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: lost.append(what.exc_value))
    Collected()
    assert [type(each) for each in lost] == [KeyboardInterrupt]
    with pytest.raises(KeyboardInterrupt):
        run_here(tmp_path / "run", *LIVE)
    assert not (tmp_path / "run").exists()


def test_what_nohup_has_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        interrupts.listen()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
