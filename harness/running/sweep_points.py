"""What the points of a sweep leave for the process that began it, in whatever process they run.

Each point has the sweep's id from its configuration, on whatever host it runs. A run that a sweep
makes or reuses is marked in its folder; a point that did not end well leaves a file in the sweep's
folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString

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


def sweep_dir_word(folder: str) -> str:
    """The override that puts a sweep's points into `folder`, from any working directory."""
    return _word("hydra.sweep.dir", os.path.abspath(folder))


def run_dir_word(folder: Path) -> str:
    """The override that puts a run's files into `folder`."""
    return _word("hydra.run.dir", str(folder))


def _word(key: str, path: str) -> str:
    """Quoted: Hydra's grammar gives blanks, commas, parentheses and others a meaning."""
    return f"{key}={QuotedString(path, Quote.single).with_quotes()}"


def named_folder(word: str) -> str:
    """What `word`, an override that names a folder, says without its quotes. Raises HydraException
    where it is no override."""
    key_and, _, text = word.partition("=")
    if not text.startswith(("'", '"')):
        return text
    return str(OverridesParser.create().parse_override(f"{key_and}={text}").value())


def note_failure(folder: Path, status: int) -> None:
    """Notes in the sweep's `folder` that the point under way ended with this exit status."""
    point = f"{os.environ[SWEEP_ID_VARIABLE]}-{HydraConfig.get().job.num}"
    write_text(folder / f".failed-{point}", f"{status}\n")


def collect_failures(folder: Path, sweep_id: str) -> None:
    """Takes what the sweep's points noted into `failed`."""
    for path in folder.glob(f".failed-{sweep_id}-*"):
        failed.append(int(path.read_text()))
        path.unlink()
