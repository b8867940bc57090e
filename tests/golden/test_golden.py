"""One small simulated run per system, held to what it gave before.

A refactor leaves these files as they are; a change of behaviour rewrites them with a line in
LOG.md that says why: `HARNESS_REWRITE_GOLDEN=1 python -m pytest tests/golden`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.running import ROOT, run_here

HERE = Path(__file__).parent
NULL = {"null"}  # measures wall time: it has nothing to hold
BURST = (
    "+workload=burstgpt", "workload.num_requests=100", "workload.scale.to_rate_per_s=60",
    "workload.lengths.max_prompt_tokens=400", "workload.lengths.max_output_tokens=60",
)  # fmt: skip
FOUR = (
    "hardware=local", "hardware.num_devices=4", "hardware.devices_per_node=4",
    "engine.num_kv_blocks=96",
)  # fmt: skip
RUNS = {
    # Lengths and arrivals of real Azure code requests, in a window with a burst.
    "vllm": (
        "+workload=azure_code", "workload.window.rows=[1000,1400]", "hardware=a100x1",
        "hardware.num_devices=2", "model=llama2-7b", "engine.num_kv_blocks=1200",
    ),
    # One of the artifact's own inputs on a fifth of its GPUs.
    "aegaeon": (
        "+workload=aegaeon", "hardware=h800x8", "hardware.num_devices=3", "model_set=aegaeon",
    ),
    "serverlessllm": ("+workload=aegaeon", "hardware=h800x8", "model_set=aegaeon"),
    "serverlessllm_plus": (
        "+workload=aegaeon", "hardware=h800x8", "model_set=aegaeon", "system.variant=artifact",
    ),
    "muxserve": ("+workload=aegaeon", "hardware=h800x8", "model_set=aegaeon"),
    # Four devices with little memory under a burst: what moves weights or KV does so here.
    **{name: (*BURST, *FOUR, *more) for name, more in {
        "aqua": (), "blitzscale": (), "blitzscale_allcache": (), "blitzscale_colocated": (),
        "blitzscale_serverlessllm": (), "distserve": (), "kunserve": (), "llumnix": (),
        "vllm_cfs": ("workload.num_requests=40",),
    }.items()},
    "flexgen": (*BURST, "hardware=local_paced", "workload.num_requests=10"),
}  # fmt: skip
KEPT = (
    "num_requests", "num_completed", "num_failed", "duration_s", "ttft_s", "tpot_s", "tbt_s",
    "e2e_s", "request_throughput_per_s", "output_throughput_tokens_per_s", "slo_attainment",
    "goodput_per_s", "gpu_seconds", "verdict",
)  # fmt: skip


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        out |= flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return out


def test_every_system_has_a_run() -> None:
    assert RUNS.keys() == {path.stem for path in (ROOT / "conf/system").glob("*.yaml")} - NULL


@pytest.mark.parametrize("system", RUNS)
def test_a_systems_simulated_run_is_what_it_was(system: str, tmp_path: Path) -> None:
    words = (f"+system='{system}'", "engine=sim", *RUNS[system])
    if not os.environ.get("HARNESS_PURE"):  # drawing is Python in any case
        words = (*words, "figure=plots.report.draw")
    summary = run_here(tmp_path / "run", *words)
    kept = {key: summary[key] for key in KEPT}
    for latency in ("ttft_s", "tpot_s", "tbt_s", "e2e_s"):
        del kept[latency]["p99.9"]  # which is younger than these files
    golden = HERE / f"{system}.json"
    if os.environ.get("HARNESS_REWRITE_GOLDEN"):
        golden.write_text(json.dumps(kept, indent=1) + "\n")
    expected = flat(json.loads(golden.read_text()))
    found = flat(kept)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, float):
            assert found[key] == pytest.approx(value, rel=1e-9), key
        else:
            assert found[key] == value, key
