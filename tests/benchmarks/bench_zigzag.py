"""How long ZigZag's integer program takes to solve, and what the ILP-free rule gives away.

    python -m tests.benchmarks.bench_zigzag [--batches 12] [--repeats 10]

Wall time in milliseconds, median and most; BlitzScale §5.2 has less than 40 ms for Llama3-8B (32
layers) and a dozen of batches. "load": the time to load a layer over the time to run one. "ends":
the sum of the batches' ends, of best effort and ILP-free over the ILP's.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import numpy as np

from systems.blitzscale.ilp import ilp
from systems.blitzscale.schedulers import best_effort, ilp_free
from systems.blitzscale.timeline import PairTimes, replay

LAYERS = {"8B": 32, "24B": 40, "72B": 80}
LOADS = (2.0, 3.9, 6.0)


def problem(num_layers: int, load: float, layer_s: np.ndarray) -> PairTimes:
    ready_s = tuple(load * k for k in range(num_layers))
    return PairTimes(num_layers=num_layers, layer_s=tuple(map(float, layer_s)), ready_s=ready_s)


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.benchmarks.bench_zigzag")
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    print(f"{'':>6}{'load':>6}{'batches':>10}{'median':>8}{'most':>8}{'best eff.':>11}{'free':>7}")
    for name, num_layers in LAYERS.items():
        for load in LOADS:
            for kind in ("equal", "unequal"):
                times_ms, ratios = [], []
                for _ in range(arguments.repeats):
                    equal = np.ones(arguments.batches)
                    spread = rng.uniform(0.5, 1.5, arguments.batches)
                    pair = problem(num_layers, load, equal if kind == "equal" else spread)
                    start = perf_counter()
                    limits = ilp(pair)
                    times_ms.append(1e3 * (perf_counter() - start))
                    ends = sum(replay(pair, limits).ends_s)
                    others = (best_effort(pair), ilp_free(pair))
                    ratios.append([sum(replay(pair, each).ends_s) / ends for each in others])
                best, free = np.mean(ratios, axis=0)
                shown = f"{np.median(times_ms):>8.1f}{max(times_ms):>8.1f}{best:>11.3f}{free:>7.3f}"
                print(f"{name:>6}{load:>6}{kind:>10}{shown}")


if __name__ == "__main__":
    main()
