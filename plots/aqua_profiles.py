"""`python -m plots.aqua_profiles`: finds the stable rates of AQUA's models, by simulation.

As section 4.1: serves each LLM at several rates, searches its stable rate, and has consumers page
through bursts of 2, 3 and 5 times this rate. All numbers are medians over five seeds, which no
other experiment uses. Writes a file for each LLM,
conf/system/aqua/profiles/ENGINE/MODEL-tpN-HARDWARE-WORKLOAD.json; ENGINE is the engine profile.
Experiments take their rates from these files (`${in_conf:…}`), and lenders take
what they can lend (`system.lender.profile`). Complete runs are not repeated.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import median

import pandas as pd

from harness.configuration.command_line import ends_in_order
from harness.errors import RunError
from harness.experiments.batch import Making, run_all
from harness.experiments.compose import CONF, ROOT, composed, conf
from harness.experiments.figure_progress import RunsProgress
from harness.experiments.points import Point, run_point
from harness.records.manifest import git_revision
from harness.running import interrupts
from harness.running.prepare import announce
from plots.aqua import most_paged_bytes
from plots.aqua.placement import PROFILES
from plots.aqua.producers import plateau
from plots.aqua.rates import EXPERIMENTS, constants, profiled, sampled
from plots.runs import config, overrides
from systems.aqua.profiler.profile import (
    MemoryProfile,
    generator_profile,
    llm_profile,
    swap_demand,
    write_profile,
)
from systems.aqua.profiler.stable_rate import RateSample, StableRate

MAKE = "python -m plots.aqua_profiles"
BASE = "eager_2024"  # the engine profile where none is asked for


def profiles(points: Sequence[Point]) -> list[MemoryProfile]:
    """The memory profile of each option of experiment/aqua/served among runs of EXPERIMENTS."""
    by_served: dict[str, list[Point]] = {}
    for point in points:
        if point.path is not None:
            by_served.setdefault(overrides(point)["served"], []).append(point)
    return [profile(served, found) for served, found in by_served.items()]


def profile(served: str, points: Sequence[Point]) -> MemoryProfile:
    asked, made = constants(), config(points[0].folder)
    samples = pd.DataFrame([sampled(point) for point in points])
    best = profiled(samples, served)
    rate_per_s, engine = best["rate_per_s"], made["engine"]["profile"]
    sample = RateSample(rate_per_s, best["ttft_s"], best["tbt_p99_s"], int(1e9 * best["free_gb"]))
    seeds, bursts = sorted(set(samples.seed)), list[Point]()

    def measure(burst_per_s: float) -> int:
        factor = burst_per_s / rate_per_s
        each = [burst(served, rate_per_s, factor, engine, seed) for seed in seeds]
        bursts.extend(each)
        return int(median(map(most_paged_bytes, each)))

    found = llm_profile(
        made["model"]["name"], made["hardware"]["name"], made["model"]["tp"],
        StableRate(sample, ()), asked["producer_above_bytes"],
        swap=lambda: swap_demand(
            measure, rate_per_s, asked["burst_factors"], asked["planned_burst"]
        ),
    )  # fmt: skip
    found.workload, found.rule = made["workload"]["name"], best["rule"]
    found.made_by = {
        "command": MAKE, "engine": "sim", "engine_profile": engine, "seeds": seeds,
        "git": git_revision(), "runs": [point.config_hash() for point in [*points, *bursts]],
    }  # fmt: skip
    return found


def generator(name: str) -> MemoryProfile:
    """The profile of an image or audio model, on the assumed curve of conf/producer."""
    found = generator_profile(name, "a100", plateau(name), constants()["producer_above_bytes"])
    found.made_by = {"command": MAKE, "inputs": f"conf/producer/{name}.yaml"}
    return found


def burst(served: str, stable_per_s: float, factor: float, engine: str, seed: int) -> Point:
    """The run in which requests come at `factor` times the stable rate for a minute, after 25 at
    the stable rate."""
    group = f"experiment/aqua/served@_global_={served}"
    words = [
        group, f"workload.arrivals.rate_per_s={stable_per_s}",
        f"workload.arrivals.burst.factor={factor:g}", f"engine.profile={engine}", f"seed={seed}",
    ]  # fmt: skip
    point = run_point("aqua_swap", composed(["+experiment=aqua_swap", group]), words, again=False)
    if point.path is None:
        raise RunError(f"the burst of {served} was refused: {point.refused}")
    return point


@ends_in_order
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m plots.aqua_profiles", description=__doc__)
    there = "default: conf/system/aqua/profiles"
    parser.add_argument("--out", type=Path, default=PROFILES, metavar="DIR", help=there)
    parser.add_argument(
        "--engine", default=BASE, metavar="PROFILE", help="engine profile (%(default)s)"
    )
    at_once = "runs at a time (%(default)s)"
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help=at_once)
    chosen = parser.parse_args(arguments)
    out = chosen.out.absolute() / chosen.engine
    simulated = [f"engine.profile={chosen.engine}"]
    os.chdir(ROOT)
    interrupts.listen()
    conf()
    with RunsProgress() as progress:
        runs = run_all(EXPERIMENTS, {}, Making(chosen.jobs, simulated=simulated), progress)
        points: list[Point] = []
        with closing(runs):
            for _, of_experiment in runs:
                if isinstance(of_experiment, Exception):
                    raise of_experiment
                points += of_experiment
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted((CONF / "producer").glob("*.yaml")):
        target = out.parent / "generators" / f"{path.stem}.json"
        target.parent.mkdir(exist_ok=True)
        write_profile(target, generator(path.stem))
    for found in profiles(points):
        write_profile(out / f"{found.name}.json", found)
        announce(
            f"{found.name}: {found.stable_rate_per_s:g} requests/s ({found.rule}), {found.role} of "
            f"{found.memory_balance / 1e9:.1f} GB a GPU"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
