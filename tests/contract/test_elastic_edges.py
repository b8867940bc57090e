"""What KunServe needed of elastic instances beyond the contract of `test_elastic.py`."""

from __future__ import annotations

from typing import Any

import pytest

from harness.clock import Event
from harness.elastic.host_copies import HostCopies
from harness.errors import InstanceLost
from harness.request import Batch, Request
from harness.running.testbed import decode, finish, prefill
from tests.elastic import DEPTH, ON_EVERY_ENGINE, Beds, halves, private, run_exactly

pytestmark = ON_EVERY_ENGINE


def test_a_load_that_fails_leaves_its_bytes_to_kv(engine: str) -> None:
    with private(engine, 2) as made:

        async def story() -> None:
            made.cluster.on_lost = lambda instance: None
            source, other = made.instances
            await other.drop(range(2, DEPTH))
            pages = other.kv.num_pages
            stop = Event(made.loop)
            stop.set()
            assert not await other.load(range(2, DEPTH), source, stop=stop)
            assert other.kv.num_pages == pages
            made.cluster.kill(source)
            with pytest.raises(InstanceLost, match=source.name):
                await other.load(range(2, DEPTH), source)
            assert other.kv.num_pages == pages

        made.run(story())


def test_a_request_ends_while_kv_moves_to_another_of_its_holders(bed: Beds, engine: str) -> None:
    with bed(engine, 2) as made:

        async def story() -> None:
            first, second = made.instances
            pipe = halves(made)
            short = made.request(20, 2)
            await prefill(pipe, [short])
            move = made.loop.spawn(
                made.cluster.move_kv([short], range(2), first, second), name="move"
            )
            await decode(pipe, [short])  # it ends with this step
            await made.loop.wait(move.finished)
            assert not first.kv.held
            assert not second.kv.held

        made.run(story())


def test_hosts_know_models_by_their_own_names(bed: Beds, engine: str) -> None:
    """Not by the names that requests carry: of one host's copies with a schedule's names."""
    with bed(engine, 1) as made:
        host = made.cluster.hosts[0]
        named = HostCopies(0, 2**30, {"what requests say": made.model}, host._shared)
        named.keep(made.model.name)
        assert made.model.name in named


def test_a_system_notes_what_no_device_knows(bed: Beds, engine: str) -> None:
    with bed(engine, 1) as made:

        async def story() -> None:
            made.cluster.note("kv", "group", 0.0, demand_bytes=5)

        made.run(story())
        (event,) = [e for e in made.recorder.events if e["kind"] == "kv"]
        assert (event["instance"], event["fields"]) == ("group", {"demand_bytes": 5})


def test_a_pipelines_chunk_that_completes_no_prompt(bed: Beds, engine: str) -> None:
    """Nothing is sampled, and the first stage is told so."""
    with bed(engine, 2) as made:

        async def story() -> None:
            pipe = halves(made)
            request = made.request(40, 5)
            for tokens in (16, 24):
                assert pipe.kv.grow(request, request.computed_tokens + tokens)
                await pipe.execute(Batch(chunks=[(request, tokens)]))
            assert request.generated_tokens == 1
            await finish(pipe, [request])

        run_exactly(made, story())


def test_two_instances_send_to_each_other_at_once(bed: Beds, engine: str) -> None:
    """More bytes each way than sockets hold: neither may stop reading while it sends."""
    with bed(engine, 2) as made:

        async def story() -> None:
            first, second = made.instances
            requests: dict[Any, list[Request]] = {first: [], second: []}
            for instance, own in requests.items():
                own += [made.request(80, 4) for _ in range(5)]
                await prefill(instance, own)
            for _ in range(8):
                pairs = ((first, second), (second, first))
                moves = [
                    made.loop.spawn(
                        made.cluster.move_kv([request], range(DEPTH), here, there), name="move"
                    )
                    for here, there in pairs
                    for request in requests[here]
                ]
                for move in moves:
                    await made.loop.wait(move.finished)
                    assert move.result
                requests = {first: requests[second], second: requests[first]}
            for instance, own in requests.items():
                await finish(instance, own)

        run_exactly(made, story())
