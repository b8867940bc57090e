"""A load that follows this machine: a share of the tokens/s that one instance decodes here.

They are measured once, in a process of its own, and kept in the folder of the runs for this machine
and this code. So the same command has the same schedule again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from harness.configuration.checks import require
from harness.errors import RunError
from harness.files import make_folder, read_json, write_json
from harness.model_spec import ModelSpec
from harness.records.manifest import machine
from harness.records.sources import code_hash, sources
from harness.schedule import Schedule

FILE = "speed.json"
REQUESTS = 4  # of a decode step that is timed: NUM_REQUESTS of harness/engine/warm_speed.py
TIMEOUT_S = 300.0


def decoded_per_s(engine: Mapping[str, Any], spec: ModelSpec, runs: Path) -> float:
    """Tokens/s of one instance that decodes REQUESTS. `engine`: a node of conf/engine, whose
    package must have a module machine_speed."""
    module = f"{engine['_target_'].rsplit('.', 2)[0]}.machine_speed"
    require(
        find_spec(module),
        "load_share measures engine=torch: for another engine give workload.scale.to_rate_per_s",
    )
    code = code_hash(sources({"_target_": module}))
    now = {"machine": machine(), "code": code, "model": spec.name}
    made = read_json(runs / FILE) if (runs / FILE).is_file() else {}
    if any(made.get(key) != value for key, value in now.items()):
        made = now | {"decode_s": measured(module, spec, engine["device"])["decode_s"]}
        make_folder(runs)
        write_json(runs / FILE, made)
    return REQUESTS / float(made["decode_s"])


def measured(module: str, spec: ModelSpec, device: str) -> dict[str, float]:
    """What `module` prints: the instance's `Speed` (harness/engine/warm_speed.py)."""
    made = subprocess.run(
        [sys.executable, "-m", module, json.dumps(asdict(spec)), device, "1"],
        capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip
    if made.returncode:
        raise RunError(f"this machine's speed cannot be measured: {made.stderr.strip()[-300:]}")
    found: dict[str, float] = json.loads(made.stdout)
    return found


def rate_per_s(share: float, tokens_per_s: float, schedule: Schedule) -> float:
    """Requests/s of `schedule`'s lengths whose outputs are that share; two digits."""
    return float(f"{share * tokens_per_s / np.mean(schedule.output_tokens):.2g}")
