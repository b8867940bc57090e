"""Instances that prefill and decode (§5.4), simulated: what half-loaded ones do, and deaths."""

from __future__ import annotations

import pytest

from harness.errors import UsageError
from tests.running import composed
from tests.serving_elastic import Served, burst, serve

LIVE = ["+system=blitzscale_colocated", "system.max_prefills=2"]
BURST = burst(0.0, 14, 500, 30)


def balanced(served: Served) -> None:
    assert served.statuses() == {"completed"}
    for instance in served.bed.instances:
        if instance.lost is None:
            assert not instance.kv.held
            assert not instance.kv.reserved
    assert not served.system.services[0].prompts.tokens
    assert not served.system.services[0].prompts.kv_tokens


def test_what_is_split_while_layers_arrive_is_collected_where_it_decodes() -> None:
    served = serve(LIVE, BURST)
    balanced(served)
    load = served.events("load")[0]
    moves = served.events("kv_move")
    assert moves, "the target ran layers of prompts before it had all of them"
    assert all(len(move["fields"]["groups"]) < 4 for move in moves), "only parts move"
    early = [move for move in moves if move["start_s"] < load["end_s"]]
    assert early
    assert {move["fields"]["to"] for move in early} == {"sim-0"}, "the target decodes nothing yet"
    assert set(served.roles()) <= {"colocated", "loading"}


def test_live_beats_stopping_the_world() -> None:
    stop = serve([*LIVE, "system.zigzag=false"], BURST)
    balanced(stop)
    assert not stop.events("kv_move"), "prompts stay where they are computed"
    assert sum(serve(LIVE, BURST).ttft_s()) < sum(stop.ttft_s())


def test_decodes_go_on_while_prompts_come() -> None:
    """An iteration has both: a prompt of 500 tokens takes a decode one step back, not more."""
    served = serve(
        ["+system=blitzscale_colocated", "system.max_prefills=1"],
        [*burst(0.0, 1, 50, 200), *burst(0.3, 3, 500, 2)],
    )  # fmt: skip
    balanced(served)
    first, *others = served.recorder.records.values()
    times_s = first.token_times_s()
    for other in others:
        came_s = float(other.token_times_s()[0])
        assert any(abs(at_s - came_s) < 1e-9 for at_s in times_s), "the same iteration"


def test_room_for_outputs_is_taken_with_the_prompt() -> None:
    """More requests than an instance has room for: none is cut off, and the load asks for more."""
    few = ["engine.num_kv_blocks=40", "system.drain_s=60"]  # of 16 tokens
    served = serve([*LIVE, *few], burst(0.0, 8, 100, 200))
    balanced(served)
    assert all(record.num_preemptions == 0 for record in served.recorder.records.values())
    assert served.events("load"), "KV that prompts wait for counts as load"


@pytest.mark.parametrize("at_s", [0.9, 2.0])
@pytest.mark.parametrize("victim", [0, 1])
def test_every_request_completes_though_one_of_a_pair_dies(victim: int, at_s: float) -> None:
    served = serve(LIVE, burst(0.0, 30, 400, 12), kill=[(victim, at_s)])
    assert [event["instance"] for event in served.events("lost")] == [f"sim-{victim}"]
    balanced(served)


def test_the_surplus_is_stopped_when_it_has_decoded_what_it_has() -> None:
    served = serve(LIVE, BURST, rest_s=3.0)
    balanced(served)
    ends = [e["end_s"] for e in served.events("slot") if e["instance"] == "sim-1"]
    assert max(ends) < max(e["end_s"] for e in served.events("slot"))


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("system.min_decodes=1", "has no effect with system.colocation=true"),
        ("system.variant=artifact", "choose system.variant=paper"),
        ("system.min_prefills=9", "instances that fit"),
    ],
)
def test_bad_input(override: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        serve(["+system=blitzscale_colocated", override], BURST)
    assert composed("+system=blitzscale_colocated").system.colocation
