"""The system on simulated instances: each step of a drop and a restore, deaths at each moment."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest

from harness.errors import RunError
from harness.request import Request
from tests.elastic import check, private
from tests.kunserve import Story, burst, serve, system_on

MEMORY = 48  # KV blocks of 16 tokens: six requests of the burst


def run(*overrides: str, num: int = 20, instances: int = 2, **more: object) -> Story:
    with private("sim", instances, kv_blocks=MEMORY) as bed:
        story = serve(bed, burst(num), *overrides, **more)  # type: ignore[arg-type]
        for instance in bed.instances:
            if instance.lost is None:
                assert not instance.kv.held
                assert not instance.kv.reserved
        check(bed)
        assert all(request.finished for request in bed.requests)
        return story


def test_a_burst_drops_exchanges_and_restores() -> None:
    story = run()
    order = [e["kind"] for e in story.bed.recorder.events]
    steps = [order.index(kind) for kind in ("drop", "exchange", "load", "restore", "migration")]
    assert steps == sorted(steps)
    assert {instance.resident for instance in story.bed.instances} == {frozenset(range(4))}
    assert {len(server.group) for server in story.system._manager.servers} == {1}
    assert not story.system._manager.leaving


def test_members_keep_one_copy_between_them_and_gain_kv() -> None:
    story = run()
    dropped = [set(event["fields"]["layers"]) for event in story.seen("drop")]
    assert dropped[:2] == [{2, 3}, {0, 1}]
    samples = story.seen("kv")
    alone = max(e["fields"]["capacity_bytes"] for e in samples if "+" not in e["instance"])
    group = max(e["fields"]["capacity_bytes"] for e in samples if "+" in e["instance"])
    assert group > 2 * alone


def test_decoding_goes_on_while_kv_is_exchanged() -> None:
    """Blocking lets no victim decode before its KV has come; live lets all."""
    gaps = {}
    for exchange in ("live", "blocking"):
        slow = ("system.chunks.bytes=16384", f"system.exchange={exchange}")
        story = run(*slow)
        begin_s = story.seen("drop")[0]["start_s"]
        end_s = story.seen("exchange")[0]["end_s"]
        records = story.bed.recorder.records.values()
        gaps[exchange] = sum(
            begin_s < time_s < end_s for record in records for time_s in record.token_times_s()
        )
        assert story.seen("exchange")[0]["fields"]["live"] == (exchange == "live")
        assert story.seen("exchange")[0]["fields"]["moves"] > 0
    assert gaps["live"] > 0


def test_more_moves_than_eight_wait_for_their_step_boundaries_side_by_side() -> None:
    """So the links carry full blocks all the time (§4.2)."""
    with private("sim", 2, kv_blocks=200) as bed:
        story = serve(bed, burst(60, gap_s=0.001))
    first = story.seen("exchange")[0]
    moves = [e for e in story.seen("kv_move") if e["end_s"] <= first["end_s"]]
    assert first["fields"]["moves"] == len(moves) > 30
    for source in ("sim-0", "sim-1"):
        mine = [move for move in moves if move["instance"] == source]
        at_once = [sum(m["start_s"] <= e["start_s"] < m["end_s"] for m in mine) for e in mine]
        assert max(at_once) > 8


def test_without_overload_nothing_is_dropped() -> None:
    story = run(num=3)
    assert not story.seen("drop")
    assert not story.seen("plan")


def test_a_drain_leaves_ongoing_requests_in_the_pipeline() -> None:
    story = run("system.restore=drain")
    assert story.seen("restore")
    assert not story.seen("migration")


def test_never_restores_nothing() -> None:
    story = run("system.restore=never")
    assert story.seen("drop")
    assert not story.seen("restore")
    assert {len(server.group) for server in story.system._manager.servers} == {2}


def test_a_standby_instance_starts_when_all_that_can_be_dropped_is_too_little() -> None:
    with private("sim", 3, kv_blocks=MEMORY) as bed:
        story = serve(bed, burst(60), "system.standby=1")
        (started,) = story.seen("standby")
        assert started["instance"] == "sim-2"
        assert started["start_s"] > min(e["start_s"] for e in story.seen("plan"))
        used = {bed.recorder.records[request.request_id].instance for request in bed.requests}
        assert "sim-2" in used
        check(bed)


def test_without_need_a_standby_instance_holds_no_weights() -> None:
    with private("sim", 3, kv_blocks=MEMORY) as bed:
        story = serve(bed, burst(3), "system.standby=1")
        assert not story.seen("standby")
        assert not bed.instances[2].resident


def test_the_standby_instance_serves_when_the_others_have_died() -> None:
    with private("sim", 3, kv_blocks=MEMORY) as bed:
        story = system_on(bed, "system.standby=1")

        async def main() -> None:
            bed.loop.spawn(story.system.serve(), name="system")
            await bed.loop.sleep(0.1)
            for instance in bed.instances[:2]:
                bed.cluster.kill(instance)
            await bed.loop.sleep(5.0)
            request = bed.request(20, 5)
            story.system.submit(request)
            await bed.loop.sleep(5.0)
            assert request.finished

        bed.run(main())


def test_exhaustive_plans_drop_and_restore_too() -> None:
    story = run("system.plan=exhaustive", num=80, instances=4)
    assert story.seen("exchange")
    assert {len(server.group) for server in story.system._manager.servers} == {1}


@pytest.mark.parametrize("instances", [3, 4])
def test_more_instances_make_groups_as_they_need(instances: int) -> None:
    story = run(num=30 * instances, instances=instances)
    assert story.seen("exchange")
    assert story.seen("restore")
    assert {len(server.group) for server in story.system._manager.servers} == {1}


def test_the_control_sees_the_need_and_drops_nothing() -> None:
    story = run("system.plan=none")
    samples = [event["fields"] for event in story.seen("kv")]
    assert any(s["demand_bytes"] > s["capacity_bytes"] for s in samples)
    assert not story.seen("drop")
    assert not story.seen("plan")


def test_groups_grow_to_their_limit_only() -> None:
    """A burst that makes four instances one group makes two groups of two, as by default."""
    sizes = []
    for limit in (["system.max_group_size=null"], ["system.max_group_size=2"], []):
        story = run(*limit, num=160, instances=4)
        sizes.append(max(event["instance"].count("+") + 1 for event in story.seen("plan")))
    assert sizes == [4, 2, 2]


def test_a_queue_for_seats_makes_no_drop_by_its_head_or_by_kv_in_use() -> None:
    """Two seats an instance, of 13 blocks each in the end: with 6 for a prompt the first in line
    fits, ten queued prompts do not."""
    arrivals, drops = [(0.01 * i, 96, 96) for i in range(24)], {}
    for queue in ("all", "first", "plan"):
        with private("sim", 2, kv_blocks=MEMORY) as bed:
            few_seats = ("system.limits.max_num_seqs=2", f"system.monitor.queue={queue}")
            drops[queue] = len(serve(bed, arrivals, *few_seats).seen("drop"))
    assert drops == {"all": 2, "first": 0, "plan": 0}


def test_kv_in_use_that_fills_the_memory_makes_a_drop() -> None:
    """With monitor.queue=plan, too: a burst that no seat holds back."""
    assert run("system.monitor.queue=plan", num=80).seen("drop")


def test_the_control_of_the_published_code_has_its_engine_and_drops_nothing() -> None:
    artifact = ("system.variant=artifact", "system.artifact.falling_samples=4")
    assert run(*artifact, num=80).seen("drop")
    control = run(*artifact, "system.plan=none", num=80)
    assert not control.seen("drop")
    assert control.seen("preempt")


def test_the_published_code_drops_all_by_thresholds_and_exchanges_in_batches() -> None:
    story = run("system.variant=artifact", "system.artifact.falling_samples=4", num=80, instances=4)
    drops = {event["instance"] for event in story.seen("drop")}
    assert len(drops) == 4
    assert not any(event["fields"]["live"] for event in story.seen("exchange"))


def beside_decodes(story: Story, from_s: float, until_s: float) -> int:
    """How many first tokens came out of an iteration in which another request decoded."""
    logs = [r for r in story.bed.recorder.records.values() if not r.num_preemptions]
    times = [(record.instance, record.token_times_s()) for record in logs]
    decoded = {(name, time_s) for name, each in times for time_s in each[1:]}
    first = [(name, each[0]) for name, each in times if from_s <= each[0] < until_s]
    assert first, "else nothing is shown"
    return sum(each in decoded for each in first)


def test_the_published_code_runs_whole_prompts_first_before_a_drop_and_chunks_after_it() -> None:
    """The preprint's engine runs them beside decodes before a drop, too."""
    public = run("system.variant=artifact", "system.artifact.falling_samples=4", num=80)
    drop_s = public.seen("drop")[0]["start_s"]
    assert beside_decodes(public, 0, drop_s) == 0
    assert beside_decodes(public, drop_s, inf) > 0
    paper = run(num=80)
    assert beside_decodes(paper, 0, paper.seen("drop")[0]["start_s"]) > 0


def test_a_drop_makes_the_groups_that_are_set() -> None:
    story = run("system.max_group_size=null", "system.groups=[3,1]", num=80, instances=4)
    made = {event["instance"] for event in story.seen("plan")}
    assert made == {"sim-0+sim-1+sim-2"}
    assert {event["instance"] for event in story.seen("drop")} == {"sim-0", "sim-1", "sim-2"}


def test_victims_wait_for_their_kv_so_many_at_a_time() -> None:
    artifact = ("system.variant=artifact", "system.artifact.falling_samples=4")
    story = run(*artifact, "system.artifact.victims=2", num=80, instances=2)
    first = story.seen("exchange")[0]
    moves = [e for e in story.seen("kv_move") if e["end_s"] <= first["end_s"]]
    assert len(moves) > 4
    for move in moves:
        beside = [m for m in moves if m["start_s"] <= move["start_s"] < m["end_s"]]
        assert len({number for m in beside for number in m["fields"]["requests"]}) <= 2


WHEN: dict[str, Callable[[Story], bool]] = {
    "before the drop": lambda story: len(story.bed.requests) >= 6,
    "before the exchange": lambda story: bool(story.seen("drop")),
    "during the exchange": lambda story: story.moving and not story.seen("restore"),
    "after the exchange": lambda story: bool(story.seen("exchange")),
    "before the restore": lambda story: story.loading,
    "during the restore": lambda story: bool(story.seen("load")),
    "during the way out": lambda story: story.moving and bool(story.seen("restore")),
    "after the restore": lambda story: bool(story.seen("migration")),
}


@pytest.mark.parametrize(("victim", "instances"), [(1, 2), (0, 4)])
@pytest.mark.parametrize("when", WHEN)
def test_no_request_is_lost_with_a_member(when: str, victim: int, instances: int) -> None:
    story = run(num=10 * instances, instances=instances, kill=(WHEN[when], victim))
    assert [event["instance"] for event in story.seen("lost")] == [f"sim-{victim}"]
    assert story.seen("recover")


def test_a_request_larger_than_an_instance_is_given_up_by_name() -> None:
    with private("sim", 2, kv_blocks=4) as bed:
        story = system_on(bed)
        story.system.submit(bed.request(200, 10))
        assert story.dropped == ["needs more KV than the 64 tokens of an instance"]


@pytest.mark.parametrize(
    ("instances", "overrides", "message"),
    [
        (1, (), "at least two instances of a model"),
        (3, ("system.variant=artifact",), "must divide the 3 instances"),
        (2, ("system.chunks.bytes=10",), "must be at least a slot"),
        (2, ("system.exchange=dead",), "valid: live, blocking"),
        (2, ("system.monitor.restore_share=1.5",), "between 0 and 1"),
        (2, ("system.variant=artifact", "system.exchange=blocking"), "victims always wait"),
        (2, ("system.groups=[2,1]",), "has 3 instances; there are 2"),
        (2, ("system.groups=[2,0]",), "must have sizes of at least 1"),
        (2, ("system.variant=artifact", "system.groups=[2]"), "is for variant=paper"),
        (2, ("system.limits.prompts_first=true",), "set system.limits.enable_chunked_prefill=fals"),
        (2, ("system.standby=1",), "has 1 beside 1 on standby"),
        (3, ("system.standby=-1",), "system.standby=-1 must be at least 0"),
        (4, ("system.variant=artifact", "system.standby=2"), "standby=2 is for variant=paper"),
        (2, ("system.max_group_size=1",), "system.max_group_size=1 must be at least 2"),
        (4, ("system.groups=[3,1]",), "system.groups makes groups of 3 instances, and"),
        (
            4,
            ("system.variant=artifact", "system.artifact.group_size=4"),
            "system.artifact.group_size makes groups of 4 instances, and",
        ),
        (4, ("system.plan=none", "system.groups=[2,2]"), "plan=none has no effect with"),
    ],
)
def test_what_makes_no_sense_is_refused(
    instances: int, overrides: tuple[str, ...], message: str
) -> None:
    with private("sim", instances) as bed, pytest.raises(ValueError, match=message):
        system_on(bed, *overrides)


def test_the_last_death_ends_the_run() -> None:
    with private("sim", 2, kv_blocks=MEMORY) as bed:
        story = system_on(bed)

        async def main() -> None:
            bed.loop.spawn(story.system.serve(), name="system")
            await bed.loop.sleep(0.1)
            for instance in bed.instances:
                bed.cluster.kill(instance)
            await bed.loop.sleep(5.0)

        with pytest.raises(RunError, match="no instance is left to serve"):
            bed.run(main())


def test_more_important_requests_are_served_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty at once, of which memory holds some: the last five overtake those that wait."""
    with private("sim", 2, kv_blocks=MEMORY) as bed:
        made, request = list[Request](), bed.request

        def important(prompt_tokens: int, output_tokens: int) -> Request:
            made.append(request(prompt_tokens, output_tokens))
            made[-1].priority = 1 if len(made) > 15 else 0
            return made[-1]

        monkeypatch.setattr(type(bed), "request", staticmethod(important))
        serve(bed, burst(20, gap_s=0.0))
        first_s = [bed.recorder.records[r.request_id].token_times_s()[0] for r in made]
        overtaken = [at_s for at_s in first_s[:15] if at_s > max(first_s[15:])]
        assert len(overtaken) >= 3, first_s
