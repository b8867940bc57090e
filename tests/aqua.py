"""AQUA on a bed of two instances, simulated or live: what its tests serve and look at."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from harness.clock import Event
from harness.configuration.config import build
from harness.configuration.options import plain
from harness.cost.hardware import Hardware
from harness.elastic.kv_region import KvStore
from harness.model_spec import ModelSpec
from harness.placement import Placement
from harness.records.record import Recorder
from harness.request import Request, Segments
from harness.running import testbed
from harness.running.testbed import Bed
from systems.aqua.system import Aqua
from tests.elastic import check
from tests.exactness import expect
from tests.running import composed

SMALL = ("system.scheduler.batch_tokens=64", "system.consumer.kv_share=0.5")


class Asked(NamedTuple):
    at_s: float
    prompt_tokens: int
    output_tokens: int
    of: str = "any"  # consumer or lender: sent there past the dispatcher
    shared: Segments = ()  # random prompts alone


class Kill(NamedTuple):
    instance: int  # 0: the consumer, 1: the lender
    at_s: float


def system(made: Bed, name: str, *overrides: str, failed: dict[int, str] | None = None) -> Aqua:
    node = composed(f"+system={name}", "+workload=burstgpt", *SMALL, *overrides).system

    def drop(request: Request, reason: str) -> None:
        if failed is not None:
            failed[request.request_id] = reason
        made.recorder.failed(request, reason)

    cluster = replace(made.given, drop=drop, placements=[])
    built: Aqua = build(plain(node), "system", loop=made.loop, cluster=cluster)
    return built


@contextmanager
def placed_bed(
    model: ModelSpec, hardware: Hardware, placements: Sequence[Placement]
) -> Iterator[Bed]:
    """A simulated one of 2,048 KV blocks on each instance; requests are of `model`."""
    node = composed("engine=sim").engine
    node.num_kv_blocks = 2048
    engine, recorder = build(plain(node), "engine"), Recorder([])
    with testbed.started(engine, {model.name: model}, hardware, placements, recorder) as started:
        cluster, loop = started
        assert cluster.elastic is not None
        made = Bed(loop, cluster.elastic, recorder, model, cluster)
        yield made
        check(made)


def serve(
    made: Bed, aqua: Aqua, asked: Sequence[Asked], *kills: Kill, linger_s: float = 0.0,
    beside: Callable[[], Coroutine[Any, Any, None]] | None = None,
    once: Callable[[], bool] = lambda: True, later: Sequence[Asked] = (),
) -> None:  # fmt: skip
    """Serves `asked` to their ends, in order of time, and `linger_s` more. `beside`: what happens
    meanwhile. The times of `kills` and of `later` requests count from when `once` is true."""
    ends, done = len(asked) + len(later), Event(made.loop)
    order = [*sorted(asked), *sorted(later)]
    expect(made, [(each.prompt_tokens, each.output_tokens) for each in order])

    def count(request: Request) -> None:
        nonlocal ends
        ends -= 1
        if not ends:
            done.set()

    async def kill(which: Kill) -> None:
        await made.loop.sleep_until(which.at_s)
        made.cluster.kill(made.instances[which.instance])

    async def afterwards() -> None:
        while not once():
            await made.loop.sleep(0.002)
        start_s = made.loop.now
        for each in kills:
            made.loop.spawn(kill(each._replace(at_s=start_s + each.at_s)), name="kill")
        await _send(made, aqua, later, start_s)

    async def story() -> None:
        made.recorder.on_done.append(count)
        made.loop.spawn(aqua.serve(), name="system")
        start_s = made.loop.now
        if beside is not None:
            made.loop.spawn(beside(), name="beside")
        made.loop.spawn(afterwards(), name="afterwards")
        await _send(made, aqua, asked, start_s)
        assert await made.loop.wait(done, until=made.loop.now + 300), "somebody starves"
        await made.loop.sleep(linger_s)

    made.run(story())
    made.cluster.end()


async def _send(made: Bed, aqua: Aqua, asked: Sequence[Asked], start_s: float) -> None:
    for each in sorted(asked):
        if start_s + each.at_s > made.loop.now:
            await made.loop.sleep_until(start_s + each.at_s)
        request = made.request(each.prompt_tokens, each.output_tokens)
        if each.shared:
            request.shared, request.prompt = each.shared, None
        role = getattr(aqua.pairs[0], each.of, None)
        if role is None or role.instance.lost is not None:
            aqua.submit(request)
        else:
            role.submit(request)


def lent_stores(aqua: Aqua, pair: int = 0) -> list[KvStore]:
    """Of the leases of a pair's lender; their pages are of the borrowers' sizes."""
    leases = [lease for loan in aqua.pairs[pair].lender.lent for lease in loan.leases.values()]
    return [aqua._leases.stores[lease] for lease in leases]


def moved(made: Bed, purpose: str) -> list[dict[str, Any]]:
    """The copies that were made for it, of some bytes."""
    return [
        event
        for event in made.recorder.events
        if event["kind"] == "kv_move"
        and event["fields"]["purpose"] == purpose
        and event["fields"]["bytes"]
    ]


def moved_bytes(made: Bed, *purposes: str) -> int:
    return sum(event["fields"]["bytes"] for purpose in purposes for event in moved(made, purpose))


def transferred_bytes(made: Bed, purpose: str) -> int:
    return sum(
        event["fields"]["bytes"]
        for event in made.recorder.events
        if event["kind"] == "transfer" and event["fields"]["purpose"] == purpose
    )
