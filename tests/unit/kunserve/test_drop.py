"""A drop on simulated instances: how much it frees, who then runs where, and what KV on its way
keeps from new requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from harness.elastic.pipeline import remote_attention_bytes
from harness.request import Request
from systems.kunserve.exchange import LinkProfile
from systems.kunserve.server import MicroBatch
from tests.elastic import private
from tests.exactness import expect
from tests.kunserve import Story, serve, system_on

MEMORY = 48  # KV blocks of 16 tokens
WHOLE = ("system.monitor.queue=all", "system.max_group_size=null")  # R of all, without a limit


def first_plan(story: Story) -> list[set[str]]:
    """The groups that the first drop made."""
    plans = story.seen("plan")
    first_s = plans[0]["start_s"]
    return [set(plan["instance"].split("+")) for plan in plans if plan["start_s"] == first_s]


@pytest.mark.parametrize(
    ("num", "prompt", "groups"),
    [(32, 96, [{"sim-0", "sim-1"}]), (100, 150, [{"sim-0", "sim-1", "sim-2", "sim-3"}])],
)
def test_a_drop_frees_what_the_queue_needs_and_no_more(
    num: int, prompt: int, groups: list[set[str]]
) -> None:
    """R of §4.1. A small burst merges two of four instances, a large one all four at once."""
    with private("sim", 4, kv_blocks=MEMORY) as bed:
        story = serve(bed, [(0.0, prompt, 60)] * num, *WHOLE)
        assert first_plan(story) == groups


def test_no_more_standby_instances_start_than_the_plan_is_short_of() -> None:
    with private("sim", 4, kv_blocks=400) as bed:
        story = serve(bed, [(0.0, 300, 100)] * 65, *WHOLE, "system.standby=2")
        assert story.seen("plan")[0]["fields"]["short_bytes"] > 0
        first_s = story.seen("standby")[0]["start_s"]
        assert [e["instance"] for e in story.seen("standby") if e["start_s"] == first_s] == [
            "sim-2"
        ]


@contextmanager
def served(*overrides: str, instances: int, kv_blocks: int = MEMORY) -> Iterator[Story]:
    with private("sim", instances, kv_blocks=kv_blocks) as bed:
        story = system_on(bed, *WHOLE, *overrides)
        bed.loop.spawn(story.system.serve(), name="system")
        yield story


def test_a_queue_over_the_batch_limit_goes_to_others_with_seats() -> None:
    """§4.3. Two instances drop. The third has more small requests than seats, and takes no part in
    this drop. Some of its queue goes to the pair or to the fourth instance."""
    with served("system.limits.max_num_seqs=4", instances=4) as story:
        bed, servers = story.bed, story.system._manager.servers
        small: list[Request] = []

        async def main() -> None:
            await bed.loop.sleep(0.001)
            for _ in range(20):
                servers[0].submit(bed.request(96, 50))
            for _ in range(12):
                small.append(bed.request(16, 50))
                servers[2].submit(small[-1])
            await bed.loop.sleep(5.0)

        bed.run(main())
        assert first_plan(story) == [{"sim-0", "sim-1"}]
        used = [bed.recorder.records[request.request_id].instance for request in small]
        assert used[:4] == ["sim-2"] * 4
        assert sum("sim-2" not in name for name in used) >= 3


def test_new_requests_leave_the_room_that_waiting_moves_need() -> None:
    """Two full pools exchange more than a drop frees, so some moves wait for others. The last
    block of a move waits for one step boundary, so the eight moves of a link end within eight
    steps. Without a reserve the queue takes what the moves give back, and the exchange lasts until
    requests end, 150 steps later."""
    first, second = [(0.0, 760, 400)] * 16, [(0.3, 300, 300)] * 30
    with private("sim", 2, kv_blocks=400) as bed:
        story = serve(bed, [*first, *second], *WHOLE)
        exchange = story.seen("exchange")[0]
        for request in bed.requests[: len(first)]:
            times_s = bed.recorder.records[request.request_id].token_times_s()
            steps = sum(exchange["start_s"] < at_s <= exchange["end_s"] for at_s in times_s)
            assert 0 < steps <= len(first) // 2


def seats_taken(most: int) -> list[list[int]]:
    """Requests that run in each micro-batch of a pair, at each moment of a long burst, once those
    that ran before the drop have ended."""
    found = []
    with served(f"system.limits.max_num_seqs={most}", instances=2) as story:
        bed = story.bed
        expect(bed, [(96, 60)] * 40)

        async def main() -> None:
            for _ in range(40):
                story.system.submit(bed.request(96, 60))
            while not all(request.finished for request in bed.requests):
                await bed.loop.sleep(0.001)
                servers = story.system._manager.servers
                pair = next((each for each in servers if len(each.group) == 2), None)
                if pair is not None and sum(request.finished for request in bed.requests) >= 16:
                    found.append([len(batch.running) for batch in pair.batches])

        bed.run(main())
    return found


def test_each_micro_batch_has_the_seats_of_an_instance() -> None:
    """§4.3: the batch limit is a micro-batch's, so a pair runs as many as two instances."""
    seen = seats_taken(4)
    assert max(max(batches) for batches in seen) == 4
    assert max(sum(batches) for batches in seen) == 8


def test_a_pipeline_has_as_many_micro_batches_as_stages() -> None:
    """Else one stage idles while the other computes (§4.2)."""
    seen = seats_taken(256)
    assert {len(batches) for batches in seen} == {2}
    together = [batches for batches in seen if sum(batches) >= 8]
    assert together
    assert all(max(batches) <= 2 * min(batches) for batches in together)


def test_a_micro_batch_takes_its_share_of_the_waiting_requests() -> None:
    """And leaves the rest to the other, which would have nothing to compute."""
    with served(instances=2) as story:

        async def main() -> None:
            await story.bed.loop.sleep(0.001)
            server = story.system._manager.servers[0]
            server.batches.append(MicroBatch(server, 1))
            server.waiting.extend(story.bed.request(20, 4) for _ in range(8))
            batch = server.batches[0].schedule(server.waiting)
            assert len(batch.chunks) == len(server.waiting) == 4

        story.bed.run(main())


def test_a_micro_batch_beside_another_takes_few_steps_at_once() -> None:
    """A run of decodes holds the blocks of all its steps."""
    with served(instances=2) as story:
        (first, _), steps = story.bed.instances, story.system._config.steps_beside

        async def main() -> None:
            await story.bed.loop.sleep(0.001)
            alone = story.system._manager.servers[0]
            assert alone.max_steps([]) is None
            alone.shared = True
            assert alone.max_steps([]) == steps
            request = story.bed.request(20, 50)
            assert first.kv.grow(request, 20)
            request.computed_tokens = 20  # 12 more fit in its second block
            alone.batches[0].running = [request]
            assert first.kv.reserve(first.kv.free_pages, "test")
            assert alone.max_steps([request]) == min(steps, 12)
            alone.batches[0].running = []
            first.kv.release(request)
            first.kv.reserve(-first.kv.reserved["test"], "test")

        story.bed.run(main())


def test_chunks_fit_between_two_activations_of_the_profiled_batch() -> None:
    """§4.2's "maximum KVCache transfer granularity". Each layer of a step of 32 decodes of 1,024
    tokens sends q, k and v to where KV still is."""
    with private("sim", 2) as bed:
        system = system_on(bed, "system.chunks.link_bytes_per_s=1e8").system
        chunks, model = system._config.chunks, bed.model
        link = LinkProfile(chunks.link_bytes_per_s, chunks.link_latency_s)
        step_s = system._cluster.profile.decode_step_s(model, 32, 32 * 1024)
        layer_s = step_s / model.num_layers
        activations_s = link.seconds(32 * remote_attention_bytes(model).there)
        chunk, page = system._manager.kv._chunk_bytes, bed.instances[0].page_bytes
        assert chunk > page
        assert link.seconds(chunk) + activations_s <= layer_s
        assert link.seconds(chunk + page) + activations_s > layer_s
