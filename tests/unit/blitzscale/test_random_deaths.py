"""Two of four instances die at random moments of a run: every request completes, no KV is left.

What is left may lack a role: the other one gives an instance up. A pair may be made for a load that
a death had planned again.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from harness.request import Request
from tests.running import hardware_profile
from tests.serving_elastic import Served, burst, serve

FOUR = replace(hardware_profile("local_cluster_x4"), num_devices=4)
SYSTEMS = (
    ("+system=blitzscale", "system.scheduler=ilp"),
    ("+system=blitzscale", "system.prescaling=false", "system.scheduler=ilp"),
    ("+system=blitzscale_serverlessllm", "system.max_prefills=2"),
    ("+system=blitzscale_serverlessllm", "system.max_prefills=3"),
    ("+system=blitzscale_allcache",),
)


def asked(rng: random.Random) -> list[Request]:
    found, at_s = [], 0.0
    for _ in range(rng.choice([1, 2, 3])):
        found += burst(at_s, rng.randint(5, 20), rng.choice([200, 400]), rng.choice([3, 12, 60]))
        at_s += rng.random() * 4
    return found


def moments(served: Served) -> list[float]:
    events = served.recorder.events
    return sorted({e[end] for e in events for end in ("start_s", "end_s") if e[end] > 0})


@pytest.mark.parametrize("seed", [1, 5])
@pytest.mark.parametrize("overrides", SYSTEMS, ids=" ".join)
def test_every_request_completes_though_two_die(overrides: tuple[str, ...], seed: int) -> None:
    rng = random.Random(seed)
    requests = asked(rng)
    when = moments(serve(overrides, requests, on=FOUR))
    for _ in range(2):
        victims = rng.sample(range(4), 2)
        kill = [(each, rng.choice(when) + rng.choice([0.0, 1e-6])) for each in victims]
        served = serve(overrides, requests, on=FOUR, kill=kill, rest_s=1.0)
        assert served.statuses() == {"completed"}, kill
        for instance in served.bed.instances:
            assert instance.lost is not None or not (instance.kv.held or instance.kv.reserved)
