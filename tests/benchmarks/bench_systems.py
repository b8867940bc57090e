"""How long whole simulated runs of other systems take: CPU seconds from the composition of the
configuration to the last file, of which `bench_sim` times the loop alone.

    python -m tests.benchmarks.bench_systems NAME

Prints one JSON line; `make bench-sim` runs each in a process of its own, in Python and compiled.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import compiled
from tests.running import run_here

A100 = ("engine=sim", "hardware=a100x1", "model=llama2-7b")
SHARED = (*A100, "+system=vllm", "+workload=azure_conv", "workload.num_requests=20000",
          "workload.lengths.order=sample", "workload.arrivals.kind=poisson",
          "workload.arrivals.rate_per_s=2", "workload.prefixes.distinct_prompts=100")  # fmt: skip
RUNS = {
    "pooled: Aegaeon, 80 models": (
        "+system=aegaeon", "+workload=aegaeon", "workload.dataset.parameters.num_models=80",
        "model_set=aegaeon", "hardware=h800x16", "engine=sim", "slo=aegaeon",
    ),
    "prefill and decode: BlitzScale": (
        *A100, "+system=blitzscale", "+workload=azure_conv", "hardware.num_devices=6",
        "workload.num_requests=2000",
    ),
    "pipelines: KunServe": (
        *A100, "+system=kunserve", "+workload=burstgpt", "hardware.num_devices=4",
        "workload.num_requests=380", "engine.num_kv_blocks=500",
    ),
    "paging: AQUA": (
        "+system=aqua", "+workload=burstgpt", "engine=sim", "hardware=h100x8",
        "hardware.num_devices=2", "model=llama2-7b", "workload.num_requests=380",
        "workload.scale.to_rate_per_s=8", "engine.num_kv_blocks=700",
    ),
    "shared prompts, prefix cache off": (*SHARED, "system.enable_prefix_caching=false"),
    "shared prompts, prefix cache on": (*SHARED, "system.enable_prefix_caching=true"),
}  # fmt: skip


def measured(name: str) -> dict[str, Any]:
    """The second of two runs: the first one reads what is read once in a process."""
    seconds = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            started_s = time.process_time()
            summary = run_here(Path(folder) / "run", *RUNS[name], "figure=null")
            seconds.append(time.process_time() - started_s)
    return {
        "name": name,
        "requests": summary["num_requests"],
        "compiled": compiled.state() == "compiled",
        "cpu_s": seconds[-1],
        "requests_per_s": summary["num_requests"] / seconds[-1],
        "mean_ttft_s": summary["ttft_s"]["mean"],
    }


if __name__ == "__main__":
    if sys.argv[1:2] == [] or sys.argv[1] not in RUNS:
        sys.exit(f"name one of: {'; '.join(RUNS)}")
    print(json.dumps(measured(sys.argv[1])))
