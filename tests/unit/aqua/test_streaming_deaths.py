"""A consumer that streams, or its lender, dies: nobody is lost, and nobody ends twice."""

from __future__ import annotations

import pytest

from tests.aqua import Asked, Kill, serve, system
from tests.unit.aqua.test_system import assert_all_done, bed

BOTH = [Asked(0.002 * i, 30 + 20 * i, 20 + 8 * (i % 3), "any") for i in range(6)]
BOTH += [Asked(0.002 * i, 60 + 9 * i, 150, "lender") for i in range(4)]


@pytest.mark.parametrize("place", ["dram", "neighbour"])
@pytest.mark.parametrize("victim", [0, 1], ids=["consumer", "lender"])
def test_whenever_one_dies_all_end_once(victim: int, place: str) -> None:
    """At each moment in which a copy of the run without deaths begins or ends, of some."""
    words = (f"system.swap_space={place}", "system.max_num_seqs=8")
    with bed() as made:
        serve(made, system(made, "flexgen", *words), BOTH)
        moments = sorted({e[k] for e in made.recorder.events for k in ("start_s", "end_s")})
    for at_s in [0.001, *moments[5 :: len(moments) // 3]]:
        with bed() as made:
            aqua = system(made, "flexgen", *words)
            serve(made, aqua, BOTH, Kill(victim, at_s), linger_s=1.0)
            assert_all_done(made)
            for instance in made.instances:
                assert instance.lost is not None or not instance.kv.held
