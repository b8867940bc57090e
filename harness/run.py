"""One experiment from a composed configuration to a run folder: prepare, serve, draw, show."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console

from harness.credentials import without_credentials
from harness.errors import UsageError
from harness.experiments.sweep import mark
from harness.prepare import Prepared, announce, prepare
from harness.records.manifest import command_line, git_revision, manifest
from harness.records.report import end_table
from harness.records.run_folder import FinishedRun, RunFolder
from harness.serve import serve


def run(
    config: DictConfig,
    *,
    output_dir: Path,
    named: bool,
    choices: Mapping[str, str],
    overrides: Sequence[str],
) -> Path:
    """Runs `config`, shows what came of it and returns the folder."""
    path, held = obtain(
        prepare(config), output_dir=output_dir, named=named, choices=choices, overrides=overrides
    )
    if held is not None:
        tell_reuse(held)
    mark(path, overrides)
    show(FinishedRun.load(path))
    return path


def obtain(
    parts: Prepared,
    *,
    output_dir: Path,
    named: bool,
    choices: Mapping[str, str],
    overrides: Sequence[str],
) -> tuple[Path, FinishedRun | None]:
    """The folder of the run (`output_dir` if it is `named` for it, else one in it), and the run
    where it was complete there already: it is not repeated, unless `again` is set."""
    digest = parts.digest()
    name = f"{choices['system']}-{choices['workload']}-{choices['engine']}-{digest}"
    folder = RunFolder(output_dir if named else output_dir / name)
    held = folder.held(digest, again=parts.options.again)
    if held is not None:
        if not (folder.path / "run.png").exists():
            parts.draw(folder.path)
    else:
        description = describe(parts, digest, choices, overrides)
        folder.begin()
        run_anew(parts, folder, description)
    return folder.path, held


def describe(
    parts: Prepared, digest: str, choices: Mapping[str, str], overrides: Sequence[str]
) -> dict[str, Any]:
    return manifest(
        world=parts.engine.world,
        choices=choices,
        overrides=without_credentials(overrides),
        config_hash=digest,
        command=without_credentials(command_line(sys.argv)),
        hardware=parts.hardware,
        provenance=parts.schedule.provenance,
        schedule_sha256=parts.schedule.sha256(),
        seeds={"seed": parts.options.seed},
        resolved={},
        started=datetime.now(UTC),
    )


def run_anew(parts: Prepared, folder: RunFolder, description: Mapping[str, Any]) -> None:
    """Serves and draws, the tracker following to the end or to an abort."""
    try:
        folder.write_schedule(parts.schedule)
        folder.write_config(parts.config)
        folder.write_manifest(description)
        parts.tracker.start(parts.config, folder.path.name, folder.path)
        try:
            serve(parts, folder, description)
            parts.draw(folder.path)
        except BaseException:
            parts.tracker.finish(complete=False)
            raise
    except UsageError:
        folder.restore()
        raise
    finally:
        folder.forget_earlier()
    parts.tracker.finish(complete=True)


def tell_reuse(held: FinishedRun) -> None:
    announce(f"already run; again=true repeats it: {held.path}")
    ran, now = held.manifest["git"], git_revision()
    if ran != now:
        announce("  it ran on another version of the code (git in its manifest.json)")


def show(finished: FinishedRun) -> None:
    console = Console()
    console.print(end_table(finished.summary, finished.manifest))
    console.print(f"{finished.path}", soft_wrap=True)
