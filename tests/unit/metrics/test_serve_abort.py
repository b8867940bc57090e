"""What ended a run is told even where its records cannot be written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.records.gpu_monitor import GpuMonitor
from harness.records.record import Recorder
from harness.records.run_folder import RunFolder
from harness.request import Request
from harness.running import serve


@pytest.mark.parametrize(
    "broken", [UnicodeEncodeError("utf-8", "\ud800", 0, 1, "lone"), OverflowError("too many")]
)
def test_a_value_that_no_file_can_hold_does_not_hide_why_a_run_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Exception
) -> None:
    def fail(*_: Any) -> None:
        raise broken

    said: list[str] = []
    monkeypatch.setattr(serve, "announce", said.append)
    monkeypatch.setattr(serve, "requests_table", fail)
    folder = RunFolder(tmp_path / "run")
    folder.begin()
    recorder = Recorder([Request(0, 0.0, "m", 1, 1)])
    serve._write_abort(folder, recorder, GpuMonitor(), {"status": "aborted", "reason": "why"})
    assert '"reason": "why"' in (folder.path / "manifest.json").read_text()
    assert said[0].startswith("the aborted run's records are incomplete: ")
