"""A complete run under another SLO than the one asked for: scored anew, it starts no engine.

The SLO is no part of what makes two runs the same. A system that reads its SLO, as Aegaeon does,
has it in its own configuration, and then runs again. The score goes beside the run, so that points
of a sweep over SLOs have one each, or takes the place of the run's own where the command names the
folder. A run that has to be served for another SLO, as with again=true, goes there as well, whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.files import replaced, writing
from harness.records.run_folder import FILES, HALF_SCORED, FinishedRun, RunFolder
from harness.records.sources import Identity
from harness.running.prepare import Prepared
from harness.running.serve import summary_of

RECORDS = [name for name in FILES if name.endswith(".parquet") and name != "schedule.parquet"]
DRAWN = [name for name in FILES if name.endswith((".png", ".html"))]
OF_THE_COMMAND = ("choices", "overrides", "config_hash", "command")  # not of what was served


def beside(run: Path, identity: Identity) -> Path:
    """The folder of the score of `run` under the SLO of `identity`."""
    return run.with_name(f"{run.name}-slo-{identity.config_hash}")


def place(run: Path, identity: Identity) -> Path:
    """Where `identity` is served, of `run` and the folder beside it: where it has been; else in
    `run`, unless a complete run for another SLO has that."""
    of, apart = served_for(run), beside(run, identity)
    if of == identity.config_hash:
        return run
    return apart if of or served_for(apart) == identity.config_hash else run


def served_for(folder: Path) -> str:
    """The `config_hash` of the complete run that was served into `folder`. Empty: there is none, or
    it is the score of another."""
    try:
        found = RunFolder(folder).manifest()
    except UsageError:
        return ""
    served = found.get("status") == "complete" and "scored_from" not in found
    return str(found.get("config_hash", "")) if served else ""


def is_of(folder: Path, run: FinishedRun, identity: Identity) -> bool:
    """Whether `folder` holds the score of `run`, as it is now, under the SLO of `identity`."""
    try:
        found = FinishedRun.load(folder).manifest
    except UsageError:  # there is none, or who made it was killed
        return False
    same_run = found.get("started_utc") == run.manifest.get("started_utc")
    return same_run and found["config_hash"] == identity.config_hash


def score(parts: Prepared, folder: Path, description: Mapping[str, Any], run: FinishedRun) -> None:
    """Leaves in `folder`, which may be that of `run`, what `run` recorded with its summary under
    the SLO of now. Whatever ends this leaves records that can be scored, and nothing that loads as
    a run. Raises RunError where a file cannot be written."""
    summary = summary_of(parts, run.requests, run.event_rows(), run.summary["wall_s"])
    manifest = run.manifest | {key: description[key] for key in OF_THE_COMMAND}
    into = RunFolder(folder)
    if folder != run.path:
        into.begin()
        manifest["scored_from"] = run.path.name
    # of no SLO, until all the rest is of this one
    into.write_manifest(manifest | {"config_hash": HALF_SCORED})
    if folder != run.path:
        into.forget_earlier()
        for name in RECORDS:
            if (run.path / name).is_file():
                with writing(folder / name), replaced(folder / name) as temporary:
                    shutil.copy2(run.path / name, temporary)
        into.write_schedule(parts.schedule)
    for name in DRAWN:  # under the SLO before
        (folder / name).unlink(missing_ok=True)
    into.write_config(parts.config)
    into.write_summary(summary)
    into.write_manifest(manifest)
