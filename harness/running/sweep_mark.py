"""What a run of a sweep notes in its folder: which sweep, and at which place of it."""

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


def mark(run_dir: Path, overrides: Sequence[str]) -> None:
    """Notes that the run belongs to the sweep under way, if there is one, and at which place."""
    if sweep_id := os.environ.get(SWEEP_ID_VARIABLE):
        place = {"sweep_id": sweep_id, "number": HydraConfig.get().job.num}
        said = without_credentials(overrides)
        write_text(run_dir / MARK, json.dumps(place | {"overrides": said}) + "\n")
