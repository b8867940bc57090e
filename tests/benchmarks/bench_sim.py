"""How fast the simulator is: requests per second of its run loop, and memory.

    python -m tests.benchmarks.bench_sim [--json FILE] [--requests 10000 100000 1000000]

Azure conv lengths (drawn with replacement), Poisson arrivals at 2 requests/s per instance,
llama2-7b on A100s, system vllm. Each case runs in a process of its own for its memory; the
per-token reference runs the same policy one iteration at a time. Each case runs in Python, and
compiled where `make setup` could do that. Loops of other systems: `bench_loops`; whole runs:
`bench_systems`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from harness import compiled
from harness.clock import VirtualLoop
from harness.cluster import Cluster
from harness.cost.model import CostModel
from harness.cost.profile import HardwareProfile
from harness.device.block_pool import BlockPool
from harness.records.manifest import git_revision, machine
from harness.records.record import Recorder
from harness.request import Request
from harness.running.client import Client
from harness.sim.instance import SimInstance
from systems.baselines.vllm import VllmSystem
from tests.benchmarks.bench_loops import LOOPS
from tests.benchmarks.bench_systems import RUNS
from tests.running import composed, hardware_profile, model_spec
from tests.unit.sim_oracle import PerTokenInstance

RATE_PER_INSTANCE_PER_S = 2.0
KV_BLOCKS = 7000  # of 16 tokens: what 80 GB leaves beside the weights


def requests(num_requests: int, num_instances: int) -> tuple[list[Request], list[str]]:
    """Lengths of Azure conv rows, cut to llama2-7b's context; Poisson arrivals. And what of them is
    synthetic: the lengths too where the trace is missing."""
    from harness.configuration.config import (
        build,  # a workload is built as the command line builds it
    )
    from harness.configuration.options import plain
    from harness.running.context_limit import fit_context, models_of_schedule

    config = composed(
        "+system=vllm", "+workload=azure_conv", "workload.lengths.order=sample",
        "workload.arrivals.kind=poisson", f"workload.num_requests={num_requests}",
        f"workload.arrivals.rate_per_s={RATE_PER_INSTANCE_PER_S * num_instances}",
    )  # fmt: skip
    data = build(plain(config.data), "data")
    schedule = build(plain(config.workload), "workload", data=data, seed=0).schedule()
    models = models_of_schedule(
        schedule, {"model": model_spec("llama2-7b")}, ["model"], shared_checkpoints=True
    )
    return fit_context(schedule, models, "truncate").requests(), schedule.provenance.synthetic


def simulate(num_requests: int, num_instances: int, kind: type[SimInstance]) -> dict[str, Any]:
    """One case in this process: seconds of the run loop, events aside from start and output."""
    todo, synthetic = requests(num_requests, num_instances)
    model, cost = model_spec("llama2-7b"), None
    loop, recorder = VirtualLoop(), Recorder(todo)
    hardware = hardware_profile("a100x1")
    cost = CostModel(model, hardware)
    instances = [
        kind(f"sim-{i}", model, BlockPool(KV_BLOCKS, 16), cost, loop, recorder)
        for i in range(num_instances)
    ]
    limits = {k: v for k, v in composed("+system=vllm").system.items() if k != "_target_"}
    profile = HardwareProfile(hardware)
    cluster = Cluster(
        {"default": model}, instances, (), (), profile, recorder.completed, recorder.failed, ()
    )
    system = VllmSystem(VllmSystem.Config(**limits), loop=loop, cluster=cluster)
    client = Client(1e9, loop=loop, recorder=recorder, system=system)

    async def main() -> None:
        loop.spawn(system.serve(), name="system")
        await client.play(todo)

    started_s = time.process_time()
    loop.run(main())
    elapsed_s = time.process_time() - started_s
    ttft_s = [recorder.records[r.request_id].token_times_s()[0] - r.arrival_s for r in todo[:2000]]
    return {
        "requests": num_requests,
        "instances": num_instances,
        "synthetic": synthetic,
        "stepping": "per token" if kind is PerTokenInstance else _macro(),
        "cpu_s": elapsed_s,
        "requests_per_s": num_requests / elapsed_s,
        "us_per_request": elapsed_s / num_requests * 1e6,
        "peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "mean_ttft_of_first_2000_s": float(np.mean(ttft_s)),
    }


def _macro() -> str:
    return "macro, compiled" if compiled.state() == "compiled" else "macro"


def in_a_process(
    num_requests: int, num_instances: int, stepping: str, pure: bool = True
) -> dict[str, Any]:
    case = [str(num_requests), str(num_instances), stepping]
    return _told(["tests.benchmarks.bench_sim", "--case", *case], pure)[0]


def _told(module: list[str], pure: bool) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", *module]
    env = os.environ | {"HARNESS_PURE": "1" if pure else "0"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", nargs="+", type=int, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--instances", nargs="+", type=int, default=[1, 16, 256])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.case:
        kind = PerTokenInstance if chosen.case[2] == "token" else SimInstance
        print(json.dumps(simulate(int(chosen.case[0]), int(chosen.case[1]), kind)))
        return
    both = (True, False) if compiled.state() == "compiled" else (True,)
    cases = [
        (n, i, "macro", pure) for i in chosen.instances for n in chosen.requests for pure in both
    ]
    tokens = [(10_000, 1, "token"), (10_000, 16, "token")]
    rows = [in_a_process(*case) for case in [*tokens, *cases]]
    table = Table("requests", "instances", "stepping", "requests/s", "µs/request", "GiB")
    for row in rows:
        table.add_row(
            f"{row['requests']:,}", str(row["instances"]), row["stepping"],
            f"{row['requests_per_s']:,.0f}", f"{row['us_per_request']:.1f}",
            f"{row['peak_memory_gib']:.2f}",
        )  # fmt: skip
    runs = [_told(["tests.benchmarks.bench_systems", n], pure)[0] for n in RUNS for pure in both]
    systems = [row for n in LOOPS for row in _told(["tests.benchmarks.bench_loops", n], both[-1])]
    loops = Table("system", "load", "requests", "requests/s")
    for row in systems:
        cells = row["system"], row["load"], f"{row['requests']:,}"
        loops.add_row(*cells, f"{row['requests_per_s']:,.0f}")
    whole = Table("whole run", "requests", "compiled", "CPU s")
    for run in runs:
        cells = str(run["requests"]), "yes" if run["compiled"] else "no", f"{run['cpu_s']:.2f}"
        whole.add_row(run["name"], *cells)
    Console().print(table, whole, loops)
    if chosen.json:
        found = {"machine": machine(), "git": git_revision(), "rows": rows}
        found |= {"runs": runs, "systems": systems}
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
