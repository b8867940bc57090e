"""Equal semantics of the engines, told on the simulator; the contract tests run them on both."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.clock import Event, VirtualLoop
from harness.cost.model import CostModel, steps_done
from harness.device.block_pool import BlockPool
from harness.errors import RunError
from harness.records.record import Recorder
from harness.request import Batch, Request
from harness.sim.instance import SimInstance
from tests.accounts import audit
from tests.running import hardware_profile, model_spec


def decoding(request_id: int, prompt: int, output: int) -> Request:
    return Request(request_id, 0.0, "m", prompt, output, computed_tokens=prompt, generated_tokens=1)


class Rig:
    def __init__(self, num_blocks: int, requests: list[Request]) -> None:
        self.loop = VirtualLoop()
        self.recorder = Recorder(requests)
        self.kv = BlockPool(num_blocks, 16)
        spec = model_spec("tiny-llama")
        cost = CostModel(spec, hardware_profile("local"))
        self.instance = SimInstance("one", spec, self.kv, cost, self.loop, self.recorder)
        for request in requests:
            assert self.kv.grow(request, request.computed_tokens + 1)


def test_blocks_shown_as_free_in_mid_decode_can_be_granted() -> None:
    """Two decodes that will fill the pool, and another request that takes what is free in the
    middle: a reservation at launch shows what is free, so that nobody runs into a full pool."""
    requests = [decoding(i, 16, 64) for i in range(2)]
    rig = Rig(11, requests)
    other = Request(9, 0.0, "m", 160, 1)
    granted = []

    async def grab() -> None:
        await rig.loop.sleep(1e-6)
        granted.append((rig.kv.free_blocks, rig.kv.grow(other, 16 * rig.kv.free_blocks)))

    async def main() -> None:
        rig.loop.spawn(grab(), name="grab")
        await rig.instance.execute(Batch(decodes=requests))

    rig.loop.run(main())
    assert granted == [(1, True)]
    assert all(request.finished for request in requests)
    audit(rig.kv)


def test_an_interrupted_run_gives_back_what_it_did_not_use() -> None:
    request = decoding(0, 16, 200)
    rig = Rig(40, [request])
    stop = Event(rig.loop)

    async def main() -> None:
        run = rig.loop.spawn(rig.instance.execute(Batch(decodes=[request]), stop=stop), name="run")
        await rig.loop.sleep(0.0)
        assert rig.kv.held[0] == 14  # 16 + 199 tokens: every step's
        stop.set()
        await rig.loop.wait(run.finished)

    rig.loop.run(main())
    assert request.generated_tokens == 2
    assert rig.kv.held[0] == 2


def test_settle_shows_every_step_that_is_over_but_not_the_last() -> None:
    request = decoding(0, 16, 11)
    rig = Rig(40, [request])
    seen = []

    async def look() -> None:
        for _ in range(200):
            before = request.generated_tokens
            at_s = rig.instance.settle()
            assert before <= request.generated_tokens < request.output_tokens
            assert at_s <= rig.loop.now
            assert request.computed_tokens == request.known_tokens - 1
            seen.append(request.generated_tokens)
            await rig.loop.sleep(2e-4)

    async def main() -> None:
        rig.loop.spawn(look(), name="look")
        assert await rig.instance.execute(Batch(decodes=[request])) == 10

    rig.loop.run(main())
    assert set(seen) == set(range(1, 11))
    times = rig.recorder.records[0].token_times_s()
    assert len(times) == 10
    assert request.finished


def test_settling_does_not_change_the_tokens_times() -> None:
    logs = []
    for settles in (0, 50):
        request = decoding(0, 16, 30)
        rig = Rig(40, [request])

        async def look(rig: Rig = rig, settles: int = settles) -> None:
            for _ in range(settles):
                rig.instance.settle()
                await rig.loop.sleep(3e-4)

        async def main(rig: Rig = rig, request: Request = request) -> None:
            rig.loop.spawn(look(), name="look")
            await rig.instance.execute(Batch(decodes=[request]))

        rig.loop.run(main())
        logs.append(rig.recorder.records[0].token_times_s().tolist())
    assert logs[0] == logs[1]


@given(st.floats(0.001, 0.05), st.floats(0, 1e-5), st.integers(0, 500), st.floats(0.01, 0.99))
def test_steps_done_is_what_stepping_would_find(
    step_s: float, growth_s: float, steps: int, within: float
) -> None:
    ends = [0.0]
    for k in range(steps + 1):
        ends.append(ends[-1] + step_s + k * growth_s)
    elapsed_s = ends[steps] + within * (ends[steps + 1] - ends[steps])
    assert steps_done(elapsed_s, step_s, growth_s) == steps


def test_the_simulator_refuses_what_a_real_engine_refuses() -> None:
    waiting = Request(0, 0.0, "m", 8, 4)
    ready = decoding(1, 8, 4)
    done = decoding(2, 8, 1)
    huge = Request(3, 0.0, "m", 8000, 8000)
    rig = Rig(40, [ready, done])
    rig.recorder.add([waiting, huge])
    bad = [
        (Batch(), None, "empty batch"),
        (Batch(decodes=[waiting]), None, "cannot decode now"),
        (Batch(decodes=[done]), None, "cannot decode now"),
        (Batch(chunks=[(waiting, 9)]), None, "a chunk of 9 tokens"),
        (Batch(chunks=[(waiting, 8)]), None, "holds 0 KV blocks"),
        (Batch(chunks=[(huge, 16)]), None, "needs 15999 positions"),
        (Batch(decodes=[ready]), 0, "max_steps=0"),
    ]
    for batch, max_steps, message in bad:
        with pytest.raises(RunError, match=message):
            rig.loop.run(rig.instance.execute(batch, max_steps=max_steps))

    async def twice() -> None:
        rig.loop.spawn(rig.instance.execute(Batch(decodes=[ready])), name="first")
        await rig.loop.sleep(0.0)
        await rig.instance.execute(Batch(decodes=[ready]))

    with pytest.raises(RunError, match="while another one is running"):
        rig.loop.run(twice())


def test_max_steps_ends_a_run() -> None:
    request = decoding(0, 16, 30)
    rig = Rig(40, [request])
    assert rig.loop.run(rig.instance.execute(Batch(decodes=[request]), max_steps=7)) == 7
    assert request.generated_tokens == 8
    assert rig.kv.held[0] == 2
