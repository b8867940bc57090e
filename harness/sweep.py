"""After a Hydra multirun: one table of all its runs, in the order in which they ran.

A Hydra callback (conf/config.yaml, hydra.callbacks). The runs of one sweep find each other by
the sweep id in their manifests, which is also their W&B group.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.console import Console

from harness.report import sweep_table

SWEEP_ID_VARIABLE = "HARNESS_SWEEP"


class SweepTable(Callback):  # type: ignore[misc]
    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        # Launchers that start processes hand their environment down.
        os.environ[SWEEP_ID_VARIABLE] = uuid.uuid4().hex[:8]

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        rows = sweep_rows(Path(config.hydra.sweep.dir), os.environ.pop(SWEEP_ID_VARIABLE))
        if rows:
            Console().print(sweep_table(rows))


def sweep_rows(directory: Path, sweep_id: str) -> list[tuple[str, dict[str, Any]]]:
    """(what sets it apart, summary) of every complete run of the sweep under `directory`."""
    found = []
    for path in directory.glob("*/manifest.json"):
        manifest = json.loads(path.read_text())
        summary = path.with_name("summary.json")
        if manifest["sweep_id"] == sweep_id and summary.exists():
            found.append((manifest, json.loads(summary.read_text())))
    found.sort(key=lambda run: run[0]["started_utc"])
    shared = (
        set.intersection(*(set(manifest["overrides"]) for manifest, _ in found)) if found else set()
    )
    return [
        (" ".join(o for o in manifest["overrides"] if o not in shared), summary)
        for manifest, summary in found
    ]
