"""After a Hydra multirun: one table of all its runs, in the order in which they ran.

A Hydra callback (conf/config.yaml, hydra.callbacks). The runs of one sweep find each other by
the sweep id in their manifests, which is also their W&B group.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.console import Console

from harness.report import origin, sweep_table

SWEEP_ID_VARIABLE = "HARNESS_SWEEP"


class SweepTable(Callback):  # type: ignore[misc]
    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        # Launchers that start processes hand their environment down.
        os.environ[SWEEP_ID_VARIABLE] = uuid.uuid4().hex[:8]

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        runs = sweep_runs(Path(config.hydra.sweep.dir), os.environ.pop(SWEEP_ID_VARIABLE))
        if runs:
            manifests = [manifest for manifest, _ in runs]
            heading, names = labels(manifests)
            rows = list(zip(names, (summary for _, summary in runs), strict=True))
            origins = [origin(manifest) for manifest in manifests]
            Console().print(sweep_table(rows, heading, origins))


def sweep_runs(directory: Path, sweep_id: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(manifest, summary) of every complete run of the sweep under `directory`, oldest first."""
    found = []
    for path in directory.glob("*/manifest.json"):
        manifest = json.loads(path.read_text())
        summary = path.with_name("summary.json")
        if manifest["sweep_id"] == sweep_id and summary.exists():
            found.append((manifest, json.loads(summary.read_text())))
    return sorted(found, key=lambda run: run[0]["started_utc"])


def labels(manifests: Sequence[dict[str, Any]]) -> tuple[str, list[str]]:
    """A heading, and what sets each run apart: the overrides that not all of them share.

    Where that is one key throughout, the key is the heading and its values are the labels.
    """
    shared = set.intersection(*(set(manifest["overrides"]) for manifest in manifests))
    apart = [[o for o in manifest["overrides"] if o not in shared] for manifest in manifests]
    keys = {override.partition("=")[0] for overrides in apart for override in overrides}
    if len(keys) == 1 and all(len(overrides) == 1 for overrides in apart):
        return keys.pop(), [overrides[0].partition("=")[2] for overrides in apart]
    return "run", [" ".join(overrides) for overrides in apart]
