"""Pooled instances on every engine: loads, prefetches, and KV that moves by the rules of
Aegaeon §5.3."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.device.memory import OutOfMemory
from harness.request import Batch
from tests.accounts import audit
from tests.contract.pool_actors import MODELS, Actors
from tests.contract.pool_bench import HOST_SLABS, KINDS, NUM_SLABS, PoolBench
from tests.examples import examples

pytestmark = pytest.mark.usefixtures("forked_workers")


@pytest.fixture(scope="module", params=KINDS)
def bench(request: pytest.FixtureRequest) -> Iterator[PoolBench]:
    """Any two of its models fit beside each other."""
    bench = PoolBench(request.param, ("wide", "narrow"))
    yield bench
    bench.close()


@pytest.fixture(scope="module", params=KINDS)
def tight(request: pytest.FixtureRequest) -> Iterator[PoolBench]:
    """Its largest model fits, and nothing beside it."""
    bench = PoolBench(request.param, ("wide",))
    yield bench
    bench.close()


def test_a_model_is_loaded_and_then_runs(bench: PoolBench) -> None:
    request, one = bench.request("narrow"), bench.pool[0]

    async def story() -> None:
        one.begin_switch()
        await one.load("narrow")
        assert one.model == "narrow"
        await bench.prefill(one, request)
        assert one.holds(request)
        await bench.decode(one, request)

    bench.run(story)
    assert request.finished
    assert len(bench.times(request)) == 6
    load, switch = bench.events("load")[-1], bench.events("switch")[-1]
    assert load["fields"] == {"model": "narrow", "staged": True}
    assert switch["fields"]["model"] == "narrow"
    assert switch["start_s"] <= load["start_s"] <= load["end_s"] <= switch["end_s"]


def test_models_of_one_shape_and_of_others_take_turns(bench: PoolBench) -> None:
    requests = [bench.request(model) for model in ("narrow", "same", "wide", "deep")]

    async def story() -> None:
        for request in requests:
            await bench.prefill(bench.pool[1], request)
        for request in requests:
            await bench.decode(bench.pool[1], request)

    bench.run(story)
    assert all(request.finished for request in requests)


def test_a_prefetched_model_arrives_beside_the_running_one(bench: PoolBench) -> None:
    request, after, one = bench.request("narrow"), bench.request("wide"), bench.pool[0]

    async def story() -> None:
        await bench.prefill(one, request)
        assert not one.can_prefetch("narrow"), "it is running"
        assert one.can_prefetch("wide")
        one.prefetch("wide")
        assert one.prefetching == "wide"
        assert not one.can_prefetch("deep"), "one at a time"
        await bench.decode(one, request)
        assert one.model == "narrow"
        await one.adopt()
        assert one.model == "wide"
        assert one.prefetching is None
        assert one.can_prefetch("narrow")
        await bench.prefill(one, after)
        await bench.decode(one, after)

    bench.run(story)
    assert after.finished
    assert bench.events("prefetch")[-1]["fields"] == {"model": "wide", "complete": True}


def test_loading_another_model_gives_a_prefetched_one_up(bench: PoolBench) -> None:
    one, request = bench.pool[0], bench.request("deep")

    async def story() -> None:
        await one.load("narrow")
        one.prefetch("wide")
        await one.load("deep")
        assert (one.model, one.prefetching) == ("deep", None)
        await bench.prefill(one, request)
        await bench.decode(one, request)

    bench.run(story)
    assert request.finished


def test_the_weights_buffer_refuses_a_model_without_room(tight: PoolBench) -> None:
    one = tight.pool[0]

    async def story() -> None:
        await one.load("wide")
        assert not one.can_prefetch("deep")
        with pytest.raises(AssertionError, match="no room"):
            one.prefetch("deep")
        await one.load("narrow")
        assert one.can_prefetch("deep"), "the two fit where wide alone does"
        assert not one.can_prefetch("wide")

    tight.run(story)


def test_kv_moves_to_another_instance_and_the_request_goes_on(bench: PoolBench) -> None:
    first, second = bench.pool
    requests = [bench.request(model, 50, 9) for model in ("wide", "deep", "narrow")]

    async def story() -> None:
        for request in requests:
            await bench.prefill(first, request)
            await bench.loop.wait(first.swap_out(request, lambda: None))
            assert not first.holds(request)
            audit(first.kv(request.model))
        for request in requests:
            await bench.swap_in(second, request)
            assert second.holds(request)
            await bench.decode(second, request)

    bench.run(story)
    for request in requests:
        assert request.finished
        assert len(bench.times(request)) == 9
        assert request.computed_tokens == 50 + 8, "nothing was computed twice"


def test_rule_1_a_batch_runs_only_with_all_its_kv_on_the_device(bench: PoolBench) -> None:
    first, second = bench.pool
    here, coming = bench.request("narrow"), bench.request("narrow")

    async def story() -> None:
        await bench.prefill(first, coming)
        await bench.prefill(second, here)
        first.swap_out(coming, lambda: None)
        arrived = second.swap_in(coming, lambda: None)
        assert arrived is not None
        assert not second.holds(coming)
        with pytest.raises(AssertionError):
            await second.execute(Batch(decodes=[here, coming]))
        await bench.decode(second, here)
        await bench.loop.wait(arrived)
        assert second.holds(coming)
        await bench.decode(second, coming)

    bench.run(story)
    assert here.finished
    assert coming.finished


def test_rule_2_a_swap_in_waits_for_the_swap_out_that_it_reads(bench: PoolBench) -> None:
    first, second = bench.pool
    request = bench.request("deep", 112)  # its next token needs another block

    async def story() -> None:
        await bench.prefill(first, request)
        await second.load("deep")
        out = first.swap_out(request, lambda: None)
        arrived = second.swap_in(request, lambda: None)
        assert arrived is not None
        assert not out.is_set
        await bench.loop.wait(arrived)
        assert out.is_set
        await bench.decode(second, request)

    bench.run(story)
    out, back = bench.events("swap_out", request)[0], bench.events("swap_in", request)[0]
    assert back["start_s"] >= out["end_s"]
    assert back["fields"]["waited_s"] > 0
    assert out["fields"]["bytes"] == back["fields"]["bytes"] == 7 * 147456


def test_rule_3_a_device_block_is_given_out_once_it_was_copied(bench: PoolBench) -> None:
    one, request = bench.pool[0], bench.request("narrow", 100)
    kv = one.kv("narrow")

    async def story() -> None:
        await bench.prefill(one, request)
        taken = kv.used_blocks
        ready = one.swap_out(request, lambda: None)
        assert not kv.held
        await bench.loop.sleep(0)
        assert ready.is_set or kv.used_blocks == taken
        await bench.loop.wait(ready)
        assert kv.used_blocks == 0
        await bench.swap_in(one, request)
        await bench.decode(one, request)

    bench.run(story)


def test_rule_3_a_host_block_in_the_move_list_is_not_given_out(bench: PoolBench) -> None:
    first, second = bench.pool
    large = bench.request("narrow", 4 * 16 * (HOST_SLABS - 2))
    other = bench.request("narrow", 4 * 16 * (HOST_SLABS - 2))

    async def story() -> None:
        await bench.prefill(first, large)
        await bench.loop.wait(first.swap_out(large, lambda: None))
        await bench.prefill(first, other)
        arrived = second.swap_in(large, lambda: None)
        assert arrived is not None
        out = first.swap_out(other, lambda: None)  # has no room before `large` has left the host
        await bench.loop.sleep(0)
        assert arrived.is_set or arrived in second.host.move_list
        await bench.loop.wait(out)
        assert arrived.is_set
        await bench.swap_in(second, other)
        await bench.decode(second, large)
        await bench.decode(second, other)

    bench.run(story)
    left, came = bench.events("swap_in", large)[0], bench.events("swap_out", other)[0]
    assert came["start_s"] >= left["end_s"]
    assert came["fields"]["waited_s"] > 0
    (full,) = bench.events("host_full", other)
    assert full["instance"] == "node-0"
    assert full["end_s"] - full["start_s"] == pytest.approx(came["fields"]["waited_s"], abs=1e-3)
    assert not bench.events("host_full", large)


def test_room_in_the_host_cache_is_claimed_for_all_or_for_nobody(bench: PoolBench) -> None:
    first, second = bench.pool
    requests = [bench.request("narrow", 4 * 16 * (HOST_SLABS // 2 + 1)) for _ in range(2)]
    one, other = requests

    async def story() -> None:
        await bench.prefill(first, *requests)
        assert not first.claim(requests)
        assert first.host.slabs.allocated_bytes() == 0
        assert first.claim([one])
        assert not first.claim([other])
        out = first.swap_out(one, lambda: None)
        await bench.loop.wait(out)
        await bench.swap_in(second, one)
        assert first.claim([other])
        first.evict(other)  # gives its room back
        assert first.host.slabs.allocated_bytes() == 0
        await bench.decode(second, one)

    bench.run(story)
    first_wait, second_wait = bench.events("host_full")[-2:]
    assert first_wait["end_s"] <= second_wait["start_s"] < second_wait["end_s"]


def test_a_claim_that_no_empty_host_cache_could_meet_is_told(bench: PoolBench) -> None:
    first, large = bench.pool[0], bench.request("narrow", 4 * 16 * HOST_SLABS + 1)

    async def story() -> None:
        await bench.prefill(first, large)
        with pytest.raises(OutOfMemory, match=r"raise engine\.pool\.host_kv_bytes"):
            first.claim([large])
        first.evict(large)

    bench.run(story)


def test_requests_arrive_one_by_one_in_the_order_asked_for(bench: PoolBench) -> None:
    first, second = bench.pool
    requests = [bench.request("narrow", 200), bench.request("narrow", 20)]

    async def story() -> None:
        await bench.prefill(first, *requests)
        for request in requests:
            await bench.loop.wait(first.swap_out(request, lambda: None))
        await second.load("narrow")
        arrivals = [second.swap_in(request, lambda: None) for request in requests]
        for request, arrived in zip(requests, arrivals, strict=True):
            assert arrived is not None
            await bench.loop.wait(arrived)
            await bench.decode(second, request)  # the next one may still be on its way

    bench.run(story)
    ends = [bench.events("swap_in", request)[0]["end_s"] for request in requests]
    assert ends == sorted(ends)


def test_a_swap_in_without_room_begins_nothing(bench: PoolBench) -> None:
    first, second = bench.pool
    request, big = bench.request("deep", 40), bench.request("narrow", 4 * 16 * NUM_SLABS - 20)

    async def story() -> None:
        await bench.prefill(first, request)
        await bench.loop.wait(first.swap_out(request, lambda: None))
        assert second.kv("narrow").grow(big, big.prompt_tokens)
        assert second.kv("deep").free_blocks == 0
        assert second.swap_in(request, lambda: None) is None
        second.kv("narrow").release(big)
        await bench.swap_in(second, request)
        await bench.decode(second, request)

    bench.run(story)
    assert request.finished


def test_shapes_compete_for_slabs_and_give_them_back(bench: PoolBench) -> None:
    one = bench.pool[0]
    narrow, wide, deep = (bench.request(model) for model in ("narrow", "wide", "deep"))
    assert one.kv("narrow") is one.kv("same"), "equal shapes share a pool"
    assert one.kv("deep").grow(deep, 16 * (NUM_SLABS - 2))
    assert one.kv("narrow").free_blocks == 2 * 4
    assert one.kv("narrow").grow(narrow, 16)
    assert one.kv("wide").free_blocks == 1 * 8
    assert one.kv("narrow").free_blocks == 3 + 4
    assert not one.kv("wide").grow(wide, 16 * 9)
    one.kv("narrow").release(narrow)
    assert one.kv("wide").grow(wide, 16 * 9)
    one.kv("deep").release(deep)
    assert one.kv("deep").grow(deep, 48)
    assert sum(run.num_blocks for run in one.kv("deep").runs[deep.request_id]) == 3
    one.kv("deep").release(deep)
    one.kv("wide").release(wide)
    bench.assert_empty()


@pytest.mark.parametrize("place", ["device", "host"])
def test_an_evicted_request_is_computed_anew(bench: PoolBench, place: str) -> None:
    one, request = bench.pool[0], bench.request("narrow")

    async def story() -> None:
        await bench.prefill(one, request)
        await bench.decode(one, request, until=0.0)
        if place == "host":
            await bench.loop.wait(one.swap_out(request, lambda: None))
        one.evict(request)
        assert (request.computed_tokens, request.generated_tokens) == (0, 2)
        assert not one.holds(request)
        bench.assert_empty()
        await bench.prefill(one, request)
        await bench.decode(one, request)

    bench.run(story)
    assert len(bench.times(request)) == 6


def test_a_restart_loses_the_weights_and_refuses_to_lose_kv(bench: PoolBench) -> None:
    one, request = bench.pool[0], bench.request("narrow")

    async def story() -> None:
        await bench.prefill(one, request)
        with pytest.raises(AssertionError, match="lose KV"):
            await one.restart()
        await bench.loop.wait(one.swap_out(request, lambda: None))
        await one.restart()
        assert one.model is None
        await one.load("narrow", staged=False)
        await bench.swap_in(one, request)
        await bench.decode(one, request)

    bench.run(story)
    assert request.finished
    assert bench.events("load")[-1]["fields"]["staged"] is False


@examples(50)
@given(
    models=st.lists(st.sampled_from(MODELS), min_size=5, max_size=5),
    prompts=st.lists(st.integers(1, 42), min_size=5, max_size=5),
    choices=st.lists(st.integers(0, 99), min_size=20, max_size=60),
)
def test_no_block_is_ever_lost_or_held_twice(
    bench: PoolBench, models: list[str], prompts: list[int], choices: list[int]
) -> None:
    actors = Actors(bench, models, prompts)

    async def story() -> None:
        for choice in choices:
            if options := actors.options():
                await actors.act(*options[choice % len(options)])
            else:  # all are on their way, or done
                await bench.loop.sleep(0.001)
            actors.check()
        await actors.leave()

    bench.run(story)
