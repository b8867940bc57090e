"""How long BlitzScale's multicast plan takes at 512 GPUs (the goal: P99 within 10 ms).

    python -m tests.benchmarks.bench_planner [--plans 200] [--gpus 512]

Random roles: each instance is a decode (a source), a prefill (a source whose NICs send KV) or a
target. Processor time, in milliseconds. Python's garbage collector now and then goes through all
objects of the process in the midst of a plan; "without" has it switched off.
"""

from __future__ import annotations

import argparse
import gc
from dataclasses import replace
from time import process_time

import numpy as np

from harness.cost.hardware import Hardware
from systems.blitzscale.chains import Medium, Source, Target
from systems.blitzscale.fabric import Fabric, fabric_of
from systems.blitzscale.planner import plan
from tests.running import hardware_profile

LAYERS_BYTES = [5e8] * 32


def seconds(fabric: Fabric, tp: int, rng: np.random.Generator) -> float:
    """Of one plan for random roles, with 1 to all but one of the instances as sources."""
    devices = fabric.devices
    slots = [tuple(range(i, i + tp)) for i in range(0, len(devices), tp)]
    slots = [slots[i] for i in rng.permutation(len(slots))]
    cut = int(rng.integers(1, len(slots)))
    sends_kv = rng.random(cut) < 0.5
    busy = {device for i in np.flatnonzero(sends_kv) for device in slots[i]}
    sources = [
        Source(medium=Medium.GPU, node=devices[slot[0]].node, devices=slot) for slot in slots[:cut]
    ]
    targets = [Target(name=f"t{slot[0]}", devices=slot) for slot in slots[cut:]]
    start = process_time()
    plan(fabric, sources, targets, LAYERS_BYTES, busy=busy)
    return process_time() - start


def cases(num_gpus: int) -> list[tuple[Hardware, int]]:
    found = []
    for name, widths in (("a800x32", (1, 4)), ("a100pcie_x16", (1, 2))):
        hardware = replace(hardware_profile(name), num_devices=num_gpus)
        for oversubscription in (1.0, 2.0):
            wired = replace(hardware, leaf_oversubscription=oversubscription)
            found += [(wired, tp) for tp in widths]
    return found


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.benchmarks.bench_planner")
    parser.add_argument("--plans", type=int, default=200)
    parser.add_argument("--gpus", type=int, default=512)
    arguments = parser.parse_args()
    print(f"{'profile':>14}{'TP':>4}{'spine':>7}{'P50':>8}{'P99':>8}{'without':>9}")
    for hardware, tp in cases(arguments.gpus):
        fabric = fabric_of(replace(hardware, devices_per_leaf=32))
        times = milliseconds(fabric, tp, arguments.plans)
        gc.disable()
        without = milliseconds(fabric, tp, arguments.plans)
        gc.enable()
        p50, p99 = np.percentile(times, [50, 99])
        spine = f"1:{hardware.leaf_oversubscription:g}"
        row = f"{hardware.name:>14}{tp:>4}{spine:>7}{p50:>8.1f}{p99:>8.1f}"
        print(f"{row}{np.percentile(without, 99):>9.1f}")


def milliseconds(fabric: Fabric, tp: int, num_plans: int) -> list[float]:
    rng = np.random.default_rng(0)
    return [1e3 * seconds(fabric, tp, rng) for _ in range(num_plans)]


if __name__ == "__main__":
    main()
