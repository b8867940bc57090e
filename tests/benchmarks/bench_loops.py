"""How fast each system is simulated: CPU seconds of the run's loop, at 0.8 of what the instances
can serve, and with all requests in the queue at once.

    python -m tests.benchmarks.bench_loops SYSTEM [0.8|queued [REQUESTS …]]

ShareGPT's lengths and Poisson arrivals. Prints a JSON line for each number of requests and load,
the least of two runs, or one of 50,000 requests and more; `make bench-sim` runs each system in a
process of its own.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness import compiled
from harness.records.record import Recorder
from harness.records.run_folder import RunFolder
from harness.running import serve
from harness.running.prepare import prepare
from tests.running import composed

SIZES = {  # requests
    "0.8": (4_000, 10_000, 100_000, 1_000_000), "queued": (1_000, 4_000, 10_000, 50_000),
}  # fmt: skip
LARGE = 50_000  # so many requests or more: one run
AT_ONCE_PER_S = 1e5  # so that the queue is as long as the schedule
FOUR = ("hardware=a100x1", "hardware.num_devices=4", "model=llama2-7b")
MANY = (
    "hardware=h800x16", "model_set=aegaeon", "workload.models.kind=uniform",
    "workload.models.num_models=40",
)  # fmt: skip
# {system: (its options, 0.8 of the requests/s that these instances can serve)}
LOOPS: dict[str, tuple[tuple[str, ...], float]] = {
    "vllm": (FOUR, 18.0),
    "llumnix": (FOUR, 15.0),
    "kunserve": (FOUR, 15.0),
    "distserve": ((*FOUR, "system.batch_tokens=4096"), 11.0),
    "blitzscale": ((*FOUR, "system.batch_tokens=4096"), 8.0),
    "aqua": (("hardware=h100x8", "hardware.num_devices=2", "model=llama2-7b"), 9.0),
    "aegaeon": ((*MANY, "slo=aegaeon"), 25.0),
    "serverlessllm": (MANY, 13.0),
    "muxserve": (
        (*MANY[:2], "workload.models.kind=uniform", "workload.models.num_models=16"),
        65.0,
    ),
}


def words(system: str, num_requests: int, rate_per_s: float) -> list[str]:
    return [
        f"+system={system}", "+workload=sharegpt", "engine=sim", *LOOPS[system][0],
        "workload.arrivals.kind=poisson", f"workload.arrivals.rate_per_s={rate_per_s}",
        f"workload.num_requests={num_requests}", "client.drain_s=1e9", "progress=false",
        "figure=null", "tracking=none",
    ]  # fmt: skip


def simulate(options: Sequence[str], around: Callable[[Any], Any]) -> Recorder:
    """Runs the loop of one run, and writes nothing; `around` is given the coroutine that plays the
    schedule, and returns one in its place."""
    parts, play = prepare(composed(*options)), serve._play
    recorder = Recorder(parts.schedule.requests())
    system = options[0].partition("=")[2]

    async def played(*args: Any) -> None:
        await around(play(*args))

    serve._play = played  # type: ignore[assignment]
    try:
        with TemporaryDirectory() as folder:
            placements = serve._placements(parts, system)
            serve._serve(parts, RunFolder(Path(folder)), recorder, placements)
    finally:
        serve._play = play
    assert recorder.num_failed == 0, f"{recorder.num_failed} of {system} have failed"
    return recorder


def measured(system: str, num_requests: int, *, at_once: bool) -> dict[str, Any]:
    """CPU seconds of the loop."""
    seconds: list[float] = []
    rate_per_s = AT_ONCE_PER_S if at_once else LOOPS[system][1]

    async def timed(play: Any) -> None:
        started_s = time.process_time()
        await play
        seconds.append(time.process_time() - started_s)

    for _ in range(2 if num_requests < LARGE else 1):
        recorder = simulate(words(system, num_requests, rate_per_s), timed)
    last_s = max(r.last_token_s for r in recorder.records.values())
    return {
        "system": system,
        "load": "at once" if at_once else "0.8",
        "requests": num_requests,
        "compiled": compiled.state() == "compiled",
        "cpu_s": min(seconds),
        "requests_per_s": num_requests / min(seconds),
        "served_per_s": num_requests / last_s,  # of the simulated time
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("system", choices=LOOPS)
    parser.add_argument("load", nargs="?", choices=SIZES)
    parser.add_argument("requests", nargs="*", type=int)
    asked = parser.parse_args()
    for load in [asked.load] if asked.load else SIZES:
        for num_requests in asked.requests or SIZES[load]:
            made = measured(asked.system, num_requests, at_once=load == "queued")
            print(json.dumps(made), flush=True)


if __name__ == "__main__":
    main()
