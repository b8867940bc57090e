"""After a Hydra multirun: one table of all its runs, in the order of the sweep.

A Hydra callback (conf/config.yaml, hydra.callbacks). Each run that a sweep makes or reuses is
marked with sweep.json in its folder; a launcher's processes inherit the sweep's id, which is
also the W&B group.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.console import Console

from harness.credentials import without_credentials
from harness.errors import UsageError
from harness.files import read_json, write_text
from harness.records.report import captions, sweep_table
from harness.records.run_folder import FinishedRun

SWEEP_ID_VARIABLE = "HARNESS_SWEEP"
MARK = "sweep.json"


class SweepTable(Callback):  # type: ignore[misc]
    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        os.environ[SWEEP_ID_VARIABLE] = uuid.uuid4().hex[:8]

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        runs = sweep_runs(Path(config.hydra.sweep.dir), os.environ.pop(SWEEP_ID_VARIABLE))
        if runs:
            heading, names = labels(
                [overrides for overrides, _ in runs], config.hydra.overrides.task
            )
            rows = [(name, run.summary) for name, (_, run) in zip(names, runs, strict=True)]
            said = [*captions([run.manifest for _, run in runs]), *idle_seeds(runs)]
            Console().print(sweep_table(rows, heading, said))


def mark(run_dir: Path, overrides: Sequence[str]) -> None:
    """Notes that the run belongs to the sweep under way, if there is one, and at which place."""
    if sweep_id := os.environ.get(SWEEP_ID_VARIABLE):
        place = {"sweep_id": sweep_id, "number": HydraConfig.get().job.num}
        said = without_credentials(overrides)
        write_text(run_dir / MARK, json.dumps(place | {"overrides": said}) + "\n")


def sweep_runs(directory: Path, sweep_id: str) -> list[tuple[list[str], FinishedRun]]:
    """(overrides, run) of every complete run of the sweep under `directory`, in its order."""
    found = []
    for path in directory.glob(f"*/{MARK}"):
        with suppress(UsageError):  # of an earlier sweep: this one's marks were just made
            mark = read_json(path)
            if mark.get("sweep_id") == sweep_id:
                found.append((mark, path))
    found.sort(key=lambda pair: int(pair[0]["number"]))
    return [(mark["overrides"], FinishedRun.load(path.parent)) for mark, path in found]


def idle_seeds(runs: Sequence[tuple[Sequence[str], FinishedRun]]) -> list[str]:
    """A sentence where runs that differ in their seed alone replayed one schedule: nothing of it
    was drawn, so that they are repeats and not samples of the workload. Else nothing."""
    settings: dict[tuple[str, ...], dict[int, str]] = {}
    for overrides, run in runs:
        setting = tuple(o for o in overrides if not o.startswith("seed="))
        seed = run.manifest["seeds"]["seed"]
        settings.setdefault(setting, {})[seed] = run.manifest["schedule_sha256"]
    swept = [hashes for hashes in settings.values() if len(hashes) > 1]
    idle = [hashes for hashes in swept if len(set(hashes.values())) == 1]
    if not idle:
        return []
    where = "" if len(idle) == len(swept) else f" in {len(idle)} of {len(swept)} settings"
    seeds = ", ".join(map(str, sorted({seed for hashes in idle for seed in hashes})))
    return [
        f"the seed draws nothing of the workload{where}: seeds {seeds} replay one schedule and are "
        "repeats, not samples"
    ]


def labels(overrides: Sequence[Sequence[str]], given: Sequence[str] = ()) -> tuple[str, list[str]]:
    """A heading, and what sets each run apart: the overrides that not all of them share.

    Where they share all, as one run that is left of a sweep does, it is what was swept: those
    that are not among the `given`, the sweep's own, in which a swept key has all its values.
    Where that is one key throughout, the key is the heading and its values are the labels.
    """
    shared = set.intersection(*(set(of_run) for of_run in overrides))
    apart = [[o for o in of_run if o not in shared] for of_run in overrides]
    if not any(apart):
        apart = [[o for o in of_run if o not in given] for of_run in overrides]
    keys = {override.partition("=")[0] for of_run in apart for override in of_run}
    if len(keys) == 1 and all(len(of_run) == 1 for of_run in apart):
        return keys.pop(), [of_run[0].partition("=")[2] for of_run in apart]
    return "run", [" ".join(of_run) for of_run in apart]
