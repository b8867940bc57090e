"""What the points of a sweep leave for the process that began it, in whatever process they run.

A launcher's processes inherit the sweep's id. Each run that a sweep makes or reuses is marked in
its folder; a point that did not end well leaves a line in the sweep's folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig

from harness.configuration.credentials import without_credentials
from harness.files import write_text

SWEEP_ID_VARIABLE = "HARNESS_SWEEP"
MARK = "sweep.json"
failed: list[int] = []  # exit statuses of the points of the sweep that ended here


def mark(run_dir: Path, overrides: Sequence[str]) -> None:
    """Notes that the run belongs to the sweep under way, if there is one, and at which place."""
    if sweep_id := os.environ.get(SWEEP_ID_VARIABLE):
        place = {"sweep_id": sweep_id, "number": HydraConfig.get().job.num}
        said = without_credentials(overrides)
        write_text(run_dir / MARK, json.dumps(place | {"overrides": said}) + "\n")


def note_failure(folder: Path, status: int) -> None:
    """Notes in the sweep's `folder` that a point ended with this exit status."""
    with _failures(folder, os.environ[SWEEP_ID_VARIABLE]).open("a") as file:
        file.write(f"{status}\n")


def collect_failures(folder: Path, sweep_id: str) -> None:
    """Takes what the sweep's points noted into `failed`."""
    path = _failures(folder, sweep_id)
    if path.is_file():
        failed.extend(map(int, path.read_text().split()))
        path.unlink()


def _failures(folder: Path, sweep_id: str) -> Path:
    return folder / f".failed-{sweep_id}"
