"""One schedule of sessions on a real engine of this machine and in simulation, by the engine's
profile, with as many KV blocks of one size: the runs that `fidelity sessions` compares.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.cost.hardware import pair_key
from harness.errors import RunError
from harness.fidelity.parity_runs import COMMON, Setting, calibration, own, profile, run, simulate
from harness.records.run_folder import FinishedRun

MODEL = "tiny-llama"
# Sessions that this engine serves without a queue on two cores, and KV memory that holds all of
# them: where nothing is evicted, hits are the same whatever the times are.
LOADS = {
    "torch": ("workload.num_sessions=60", "workload.rate_per_s=1", "workload.think.mean_s=2",
              "workload.scale_tokens=0.25"),
    "vllm": ("workload.num_sessions=30", "workload.rate_per_s=0.5", "workload.think.mean_s=1",
             "workload.scale_tokens=0.1", "workload.max_turns=5"),
}  # fmt: skip
MEMORY = {
    "torch": ("engine.num_kv_blocks=8192",),
    "vllm": ("engine.block_tokens=32", "engine.num_kv_blocks=600"),
}
PROFILES = {"torch": "local", "vllm": "local_vllm"}


def served(
    engine: str, folder: Path, *, calibrate: bool
) -> tuple[list[FinishedRun], dict[str, Any]]:
    """The real run and its simulation, and what that was told of the machine. RunError where the
    real run is INVALID: its times are not the engine's."""
    setting = Setting(MODEL, PROFILES[engine], 1.0, 1.0, 0.1)
    words = [*COMMON, "+workload=sessions", *LOADS[engine], f"model={MODEL}", "figure=null"]
    if calibrate:
        profile(engine, MODEL)
    own_words = [*own(engine, setting.profile), *MEMORY[engine]]
    real = run([*words, *own_words], folder / engine, engine)
    if real.invalid:
        raise RunError(f"{real.path} is INVALID: {real.invalid}; give the command again")
    simulated = simulate(real, words, setting, folder / f"{engine}-sim")
    known = asdict(calibration(real, setting))
    known["measured"] = known["measured"][pair_key(MODEL, 1)]
    return [real, simulated], known
