"""A load that follows this machine: a share of the tokens/s that one instance decodes here.

They are measured once, in a process of its own, and kept in the folder of the runs for this
machine, this code, the model and how the engine computes. So the same command has the same schedule
again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from harness.configuration.checks import require
from harness.errors import RunError
from harness.files import make_folder, read_json, write_json
from harness.model_spec import ModelSpec
from harness.records.manifest import hash_of, machine
from harness.records.sources import code_hash, sources
from harness.running import device_lock
from harness.schedule import Schedule

FILE = "speed.json"
REQUESTS = 4  # of a decode step that is timed: NUM_REQUESTS of harness/engine/warm_speed.py
TIMEOUT_S = 300.0


def decoded_per_s(
    engine: Mapping[str, Any], spec: ModelSpec, runs: Path, announce: Callable[[str], None]
) -> float:
    """Tokens/s of one instance that decodes REQUESTS. `engine`: a node of conf/engine, whose
    package must have a module machine_speed. Without engine.num_threads it has one thread. Waits
    for live runs on the device."""
    module = f"{engine['_target_'].rsplit('.', 2)[0]}.machine_speed"
    require(
        find_spec(module),
        "load_share measures engine=torch: for another engine give workload.scale.to_rate_per_s",
    )
    words = [
        json.dumps(asdict(spec)), engine["device"], str(engine["num_threads"] or 1),
        engine["attention"],
    ]  # fmt: skip
    asked = hash_of({"words": words})
    now: dict[str, Any] = {"machine": machine(), "code": code_hash(sources({"_target_": module}))}
    with device_lock.held(device_lock.occupied(engine), announce):
        made = read_json(runs / FILE) if (runs / FILE).is_file() else {}
        if any(made.get(key) != value for key, value in now.items()) or "decodes" not in made:
            made = now | {"decodes": {}}
        if asked not in made["decodes"]:
            made["decodes"][asked] = measured(module, *words)["decode_s"]
            make_folder(runs)
            write_json(runs / FILE, made)
    return REQUESTS / float(made["decodes"][asked])


def measured(module: str, *words: str) -> dict[str, float]:
    """What `module` prints when given `words`: the instance's `Speed`
    (harness/engine/warm_speed.py)."""
    try:
        made = subprocess.run(
            [sys.executable, "-m", module, *words],
            capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        told = f"this machine's speed cannot be measured within {TIMEOUT_S:g} s"
        raise RunError(f"{told}: give workload.scale.to_rate_per_s") from None
    if made.returncode:
        raise RunError(f"this machine's speed cannot be measured: {made.stderr.strip()[-300:]}")
    found: dict[str, float] = json.loads(made.stdout)
    return found


def rate_per_s(share: float, tokens_per_s: float, schedule: Schedule) -> float:
    """Requests/s of `schedule`'s lengths whose outputs are that share; two digits."""
    return float(f"{share * tokens_per_s / np.mean(schedule.output_tokens):.2g}")
