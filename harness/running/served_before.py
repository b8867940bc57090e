"""A complete run of the same requests by the same system, under another SLO: scored anew, it starts
no engine.

A system that reads its SLO, as Aegaeon does, has it in its own configuration, and then runs again.
Beside the runs a file for each thing served names the run that has it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.files import make_folder, write_text
from harness.records.folder_lock import locked
from harness.records.run_folder import FILES, FinishedRun, RunFolder
from harness.records.sources import Identity
from harness.running.prepare import Prepared
from harness.running.serve import summary_of

INDEX = ".served"
RECORDS = [name for name in FILES if name.endswith(".parquet") and name != "schedule.parquet"]
OF_THE_COMMAND = ("choices", "overrides", "config_hash", "command")  # not of what was served


def note(runs: Path, identity: Identity, run: Path) -> None:
    """Has `run`, in `runs`, stand for what it served."""
    make_folder(runs / INDEX)
    write_text(runs / INDEX / identity.served, run.name)


def found(runs: Path, identity: Identity) -> FinishedRun | None:
    """A complete and VALID run of the same code that served the same; None: there is none."""
    named = runs / INDEX / identity.served
    if not named.is_file():
        return None
    return _alike(runs / named.read_text(), identity.served_hash, identity.sources)


def _alike(path: Path, served_hash: str, sources: Mapping[str, str]) -> FinishedRun | None:
    try:
        run = FinishedRun.load(path)
    except UsageError:  # it is gone, or is being run again
        return None
    alike = run.manifest.get("served_hash") == served_hash
    complete = alike and run.manifest["status"] == "complete" and not run.invalid
    return run if complete and run.manifest["sources"] == sources else None


def score_anew(
    parts: Prepared, folder: RunFolder, description: Mapping[str, Any], run: FinishedRun
) -> None:
    """Leaves in `folder` what `run` recorded, with its summary under the SLO of now. UsageError
    where it has been run again since it was found, and served something else."""
    with locked(run.path, wait=True):
        now = _alike(run.path, description["served_hash"], description["sources"])
        if now is None:
            raise UsageError(f"{run.path} has changed meanwhile: give the command again")
        for name in RECORDS:
            if (run.path / name).is_file():
                shutil.copy2(run.path / name, folder.path / name)
        wall_s = now.summary["wall_s"]
        folder.write_summary(summary_of(parts, now.requests, now.event_rows(), wall_s))
    own = {key: description[key] for key in OF_THE_COMMAND}
    folder.write_manifest(now.manifest | own | {"scored_from": run.path.name})
