"""AQUA on real workers: tokens are those of an undisturbed run, wherever KV was meanwhile."""

from __future__ import annotations

import os
import signal

import pytest

from systems.aqua.coordinator.client import Remote
from tests.aqua import Asked, Kill, moved, moved_bytes, serve, system
from tests.elastic import check, generated, private, undisturbed
from tests.running import hardware_profile

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("forked_workers")]

CROWD = [Asked(0.01 * i, 90 + 7 * i, 60 + 5 * (i % 4), "consumer") for i in range(12)]
LONG_CROWD = [Asked(0.01 * i, 90, 150, "consumer") for i in range(12)]
BURST = [Asked(0.0, 60, 20, "lender") for _ in range(60)]
RETURN = ("migrate to DRAM", "migrate to lease")
DIRTY = "system.variants.paper.scheduler.dirty_only=true"  # copies stay in swap space
CASES = {
    "paged to the neighbour": ("aqua", [], CROWD, ("page out to lease", "page in from lease")),
    "artifact": ("aqua", ["system.variant=artifact"], CROWD, ("page out to DRAM",)),
    "kept in DRAM": ("vllm_cfs", [DIRTY], LONG_CROWD, ("page out to DRAM", "page in from DRAM")),
    "kept, then reclaimed": ("aqua", ["system.max_num_seqs=8", DIRTY], LONG_CROWD, RETURN),
    "dead lender": ("aqua", [DIRTY], LONG_CROWD, ("page out to lease",)),
    "dead consumer": ("aqua", [], LONG_CROWD, ("page out to lease",)),
}  # fmt: skip
# When something has been paged to the neighbour.
KILLS = {"dead lender": Kill(1, 0.3), "dead consumer": Kill(0, 0.05)}


# The first is run on nodes, and here by the test of a coordinator that is killed.
@pytest.mark.parametrize("case", list(CASES)[1:])
def test_tokens_are_those_of_an_undisturbed_run(case: str) -> None:
    name, overrides, asked, purposes = CASES[case]
    kills = [KILLS[case]] if case in KILLS else []
    burst = BURST if case == "kept, then reclaimed" else []
    paced = hardware_profile("local_paced")
    with private("torch", 2, kv_blocks=128, page_layers=None, on=paced, paced=True) as made:

        def paged() -> bool:
            return bool(moved(made, "page out to lease"))

        serve(made, system(made, name, *overrides), asked, *kills, once=paged, later=burst)
        tokens = generated(made)
    assert {record.status for record in made.recorder.records.values()} == {"completed"}
    assert tokens == undisturbed(made)
    assert all(moved(made, purpose) for purpose in purposes)
    if not kills:
        out = moved_bytes(made, "page out to lease", "page out to DRAM")
        into = moved_bytes(made, "page in from lease", "page in from DRAM")
        if case == "kept, then reclaimed":  # a sequence that pages once leaves no copy to spare it
            assert out <= into, (out, into)
        else:
            assert out < into if DIRTY in overrides or case == "artifact" else out == into
        check(made)
    else:
        lost = {each.instance for each in kills}
        assert all((i.lost is not None) == (n in lost) for n, i in enumerate(made.instances))


def test_a_coordinator_that_is_killed_in_mid_run_loses_nothing() -> None:
    """It comes back with its leases: no request is lost or computed again, tokens are the same."""
    paced = hardware_profile("local_paced")
    with private("torch", 2, kv_blocks=128, page_layers=None, on=paced, paced=True) as made:
        aqua = system(made, "aqua")
        coordinator = aqua._leases.coordinator
        assert isinstance(coordinator, Remote)
        process = coordinator.process
        killed = [process.pid]

        async def kill() -> None:
            while not moved(made, "page out to lease"):
                await made.loop.sleep(0.01)
            os.kill(killed[0], signal.SIGKILL)

        serve(made, aqua, CROWD, beside=kill)
        tokens = generated(made)
    assert process.restarts == 1
    assert process.pid not in killed
    assert {record.status for record in made.recorder.records.values()} == {"completed"}
    assert tokens == undisturbed(made)
    assert not any(record.num_preemptions for record in made.recorder.records.values())
    out = moved_bytes(made, "page out to lease", "page out to DRAM")
    assert out == moved_bytes(made, "page in from lease", "page in from DRAM")
    check(made)
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
