"""Random bursts, settings and deaths on simulated instances: nobody is lost, no page is left."""

from __future__ import annotations

import random

import pytest

from tests.elastic import check, hardware, private
from tests.kunserve import Arrival, serve
from tests.unit.kunserve.test_system import WHEN


def settings(rng: random.Random, instances: int) -> list[str]:
    chosen = []
    if rng.random() < 0.2:
        chosen.append("system.exchange=blocking")
    if rng.random() < 0.2:
        chosen.append("system.restore=drain")
    if rng.random() < 0.2 and instances % 2 == 0 and not chosen:
        chosen += ["system.variant=artifact", "system.artifact.falling_samples=4"]
    if rng.random() < 0.2 and not any("artifact" in each for each in chosen):
        chosen.append("system.plan=memory")
    if rng.random() < 0.3:
        chosen.append("system.limits.max_num_batched_tokens=64")
    if rng.random() < 0.3:
        chosen.append("system.steps_beside=3")
    return [*chosen, f"system.monitor.calm_s={rng.choice([0.0, 0.05, 0.2])}"]


def arrivals(rng: random.Random, instances: int) -> list[Arrival]:
    found: list[Arrival] = []
    at_s = 0.0
    for _ in range(rng.choice([1, 2, 3])):
        for _ in range(rng.randint(5, 12 * instances)):
            at_s += rng.expovariate(rng.choice([50, 300]))
            prompt = rng.randint(5, 300)
            output = rng.choice([rng.randint(1, 20), rng.randint(50, 150), rng.randint(200, 400)])
            found.append((at_s, prompt, output))
        at_s += rng.random() * 3
    return found


# 5104: a merge in the moment in which requests leave a pipeline for an instance that is to end.
@pytest.mark.parametrize("seed", [1, 3, 7, 5001, 5104])
def test_nobody_is_lost_and_no_page_is_left(seed: int) -> None:
    rng = random.Random(seed)
    instances = rng.choice([3, 4, 6, 8])
    model = rng.choice(["tiny-llama", "tiny-llama-deep"])
    chosen, bursts = settings(rng, instances), arrivals(rng, instances)
    kill = None
    if rng.random() < 0.6:
        kill = rng.choice(list(WHEN.values())), rng.randrange(instances)
    with private("sim", instances, kv_blocks=48, model=model, on=hardware(instances)) as bed:
        serve(bed, bursts, *chosen, kill=kill)
        for instance in bed.instances:
            if instance.lost is None:
                assert not instance.kv.held
                assert not instance.kv.reserved
        check(bed)
