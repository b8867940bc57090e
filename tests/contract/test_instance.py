"""The device contract of `harness.cluster.Instance`, on every kind of instance that we schedule.

Each story runs on the simulator in virtual time and on a real worker process in wall time.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from omegaconf import OmegaConf

from harness.clock import Event
from harness.configuration.config import build
from harness.configuration.options import plain
from harness.device.instance import Instance
from harness.errors import RunError
from harness.placement import dedicated
from harness.records.record import Recorder
from harness.request import Batch, Request
from harness.running.testbed import started
from tests.running import hardware_profile, model_spec

pytestmark = pytest.mark.usefixtures("forked_workers")

NUM_BLOCKS, BLOCK_TOKENS = 40, 16


class Bench:
    """One engine with one tiny-llama instance and a fresh recorder."""

    def __init__(self, kind: str) -> None:
        node = OmegaConf.load(f"conf/engine/{kind}.yaml")
        node.num_kv_blocks = NUM_BLOCKS
        assert node.block_tokens == BLOCK_TOKENS
        engine = build(plain(node), "engine")
        self.recorder = Recorder([])
        models, hardware = {"default": model_spec("tiny-llama")}, hardware_profile("local")
        self._started = started(
            engine, models, hardware, dedicated(models, hardware), self.recorder
        )
        cluster, self.loop = self._started.__enter__()
        self.instance: Instance = cluster.instances[0]
        self._next_id = 0

    def close(self) -> None:
        self._started.__exit__(None, None, None)

    def request(self, prompt: int, output: int) -> Request:
        request = Request(self._next_id, 0.0, "default", prompt, output)
        self._next_id += 1
        self.recorder.add([request])
        return request

    def times(self, request: Request) -> list[float]:
        return list(self.recorder.records[request.request_id].token_times_s())

    def run(self, story: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        try:
            return self.loop.run(story())
        finally:
            for request_id in list(self.instance.kv.held):
                self.instance.kv.release(self.recorder.records[request_id].request)

    async def prefill(self, *requests: Request) -> None:
        for request in requests:
            assert self.instance.kv.grow(request, request.prompt_tokens)
        chunks = [(request, request.prompt_tokens) for request in requests]
        assert await self.instance.execute(Batch(chunks=chunks)) == 1

    async def decode(self, *requests: Request, **how: Any) -> int:
        for request in requests:
            assert self.instance.kv.grow(request, request.computed_tokens + 1)
        return await self.instance.execute(Batch(decodes=list(requests)), **how)


@pytest.fixture(scope="module", params=["sim", pytest.param("torch", marks=pytest.mark.live)])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(request.param)
    yield bench
    bench.close()


def test_a_whole_prompt_gives_the_first_token(bench: Bench) -> None:
    request = bench.request(20, 3)
    bench.run(lambda: bench.prefill(request))
    assert (request.computed_tokens, request.generated_tokens) == (20, 1)
    assert request.decoding
    assert len(bench.times(request)) == 1


def test_a_chunk_gives_no_token_until_the_prompt_is_complete(bench: Bench) -> None:
    request = bench.request(20, 3)

    async def story() -> None:
        assert bench.instance.kv.grow(request, 12)
        await bench.instance.execute(Batch(chunks=[(request, 12)]))
        assert (request.computed_tokens, request.generated_tokens) == (12, 0)
        assert bench.instance.kv.grow(request, 20)
        await bench.instance.execute(Batch(chunks=[(request, 8)]))

    bench.run(story)
    assert (request.computed_tokens, request.generated_tokens) == (20, 1)


def test_decodes_run_to_the_first_completion(bench: Bench) -> None:
    short, long = bench.request(10, 5), bench.request(10, 9)

    async def story() -> int:
        await bench.prefill(short, long)
        return await bench.decode(short, long)

    assert bench.run(story) == 4
    assert short.finished
    assert long.generated_tokens == 5
    assert short.request_id not in bench.instance.kv.held
    assert bench.recorder.records[short.request_id].status == "completed"
    for request in (short, long):
        times = bench.times(request)
        assert len(times) == 5
        assert times == sorted(times)


def test_a_batch_mixes_chunks_and_decodes(bench: Bench) -> None:
    old, new = bench.request(10, 5), bench.request(30, 5)

    async def story() -> None:
        await bench.prefill(old)
        assert bench.instance.kv.grow(old, 11)
        assert bench.instance.kv.grow(new, 30)
        await bench.instance.execute(Batch(chunks=[(new, 30)], decodes=[old]))

    bench.run(story)
    assert (old.generated_tokens, new.generated_tokens) == (2, 1)
    assert bench.times(old)[-1] == bench.times(new)[-1]


def test_a_stop_set_before_lets_one_iteration_run(bench: Bench) -> None:
    request, stop = bench.request(10, 50), Event(bench.loop)

    async def story() -> int:
        await bench.prefill(request)
        stop.set()
        return await bench.decode(request, stop=stop)

    assert bench.run(story) == 1
    assert request.generated_tokens == 2


def test_a_stop_in_the_middle_ends_at_a_step_boundary(bench: Bench) -> None:
    request, stop = bench.request(10, 400), Event(bench.loop)

    async def stopper() -> None:
        await bench.loop.sleep(0.02)
        stop.set()

    async def story() -> int:
        await bench.prefill(request)
        bench.loop.spawn(stopper(), name="stopper")
        return await bench.decode(request, stop=stop)

    steps = bench.run(story)
    assert 1 <= steps < 399
    assert request.generated_tokens == 1 + steps == len(bench.times(request))
    assert request.computed_tokens == 10 + steps


def test_until_ends_at_the_first_boundary_past_it(bench: Bench) -> None:
    request = bench.request(10, 500)

    async def story() -> tuple[int, float, float]:
        await bench.prefill(request)
        until = bench.loop.now + 0.02
        steps = await bench.decode(request, until=until)
        return steps, until, bench.loop.now

    steps, until, now = bench.run(story)
    assert 1 <= steps < 499
    assert now >= until
    assert steps == 1 or bench.times(request)[-2] < until


def test_decodes_stop_where_the_pool_cannot_hold_the_next_token(bench: Bench) -> None:
    first, second = bench.request(300, 400), bench.request(300, 400)

    async def story() -> int:
        await bench.prefill(first, second)
        return await bench.decode(first, second)

    # 40 blocks: 20 each hold 320 tokens, so 20 more after the 300 of the prompt.
    assert bench.run(story) == 20
    assert not first.finished
    assert first.computed_tokens == 320


def test_a_request_that_ended_here_is_refused(bench: Bench) -> None:
    """It has passed the checks of this instance before."""
    request = bench.request(10, 3)

    async def story() -> None:
        await bench.prefill(request)
        assert await bench.decode(request) == 2
        await bench.decode(request)

    with pytest.raises(RunError, match="cannot decode now"):
        bench.run(story)
    assert len(bench.times(request)) == 3


def test_an_evicted_request_is_recomputed_with_its_tokens(bench: Bench) -> None:
    request = bench.request(20, 6)

    async def story() -> None:
        await bench.prefill(request)
        await bench.decode(request, until=0.0)
        kept = request.generated_tokens
        bench.instance.evict(request)
        assert request.computed_tokens == 0
        assert request.request_id not in bench.instance.kv.held
        assert request.generated_tokens == kept
        assert bench.instance.kv.grow(request, request.known_tokens)
        await bench.instance.execute(Batch(chunks=[(request, request.known_tokens)]))
        assert request.generated_tokens == kept + 1
        await bench.decode(request)

    bench.run(story)
    assert request.finished
    assert len(bench.times(request)) == 6
    assert bench.recorder.records[request.request_id].num_preemptions == 1
