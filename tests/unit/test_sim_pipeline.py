"""Pipelines and chains of the simulator against times worked out by hand and stepped one by one."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.configuration.config import build
from harness.configuration.options import plain
from harness.cost.law import Part
from harness.cost.model import CostModel
from harness.elastic.instance import ElasticInstance
from harness.elastic.pipeline import Pipeline
from harness.request import Request
from harness.running import testbed
from harness.running.testbed import Bed, decode, finish, prefill
from harness.sim.pipeline import SimPipeline
from tests.accounts import audit
from tests.elastic import hardware, private, spec
from tests.examples import examples
from tests.running import composed

DEPTH = 4
MODEL = spec()
LINK = {"pcie_bytes_per_s": 1e9, "pcie_peak_bytes_per_s": 1e9, "pcie_latency_s": 1e-4}
ON = hardware(8, gpus_per_pcie_switch=8, **LINK)
TURNAROUND_S = ON.calibration.turnaround_s


def stage_s(tokens: int, decodes: int, context: int, layers: int, first: bool) -> float:
    cost = CostModel(MODEL, ON, Part(layers, first))
    if tokens:
        return cost.mixed_step([(0, tokens)], decodes, context)
    return cost.decode_step(decodes, context)[0]


def hop_s(tokens: int) -> float:
    return 1e-4 + MODEL.activation_bytes_per_token * tokens / 1e9


def ids_s(tokens: int) -> float:
    return 1e-4 + 8 * tokens / 1e9


def first_token_s(made: Bed, request: Request) -> float:
    return float(made.recorder.records[request.request_id].token_times_s()[0])


def test_two_prompts_over_two_stages_are_what_a_hand_computes() -> None:
    """The second prompt enters the first stage as the first one leaves it."""
    with private("sim", 2, on=ON) as made:
        first, second = made.instances
        pipe = made.cluster.pipeline([(first, range(3)), (second, range(3, DEPTH))])
        requests = [made.request(100, 1), made.request(200, 1)]

        async def story() -> None:
            tasks = [made.loop.spawn(prefill(pipe, [r]), name="prompt") for r in requests]
            for task in tasks:
                await made.loop.wait(task.finished)

        made.run(story())
    a = [TURNAROUND_S + stage_s(100, 0, 0, 3, True), stage_s(100, 0, 0, 1, False)]
    b = [TURNAROUND_S + stage_s(200, 0, 0, 3, True), stage_s(200, 0, 0, 1, False)]
    a_out = a[0] + hop_s(100) + a[1]
    b_out = max(a[0] + b[0] + hop_s(200), a_out) + b[1]
    assert first_token_s(made, requests[0]) == pytest.approx(a_out + ids_s(100), abs=1e-12)
    assert first_token_s(made, requests[1]) == pytest.approx(b_out + ids_s(200), abs=1e-12)


@pytest.mark.parametrize("ahead", [True, False])
def test_few_activations_do_not_overtake_many_on_their_link(
    ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stages booked ahead, or one event each: a short prompt leaves the first stage long before
    the activations of the one ahead have crossed, and follows them."""
    if not ahead:
        monkeypatch.setattr(SimPipeline, "_alone", lambda pipeline: False)
    slow = replace(ON, pcie_bytes_per_s=1e7, pcie_peak_bytes_per_s=1e7)
    with private("sim", 2, on=slow) as made:
        first, second = made.instances
        pipe = made.cluster.pipeline([(first, range(3)), (second, range(3, DEPTH))])
        requests = [made.request(400, 1), made.request(5, 1)]

        async def story() -> None:
            tasks = [made.loop.spawn(prefill(pipe, [r]), name="prompt") for r in requests]
            for task in tasks:
                await made.loop.wait(task.finished)

        made.run(story())
        per_token_s = MODEL.activation_bytes_per_token / 1e7
    long_s, short_s = (TURNAROUND_S + stage_s(n, 0, 0, 3, True) for n in (400, 5))
    assert short_s < 400 * per_token_s
    crossed_s = long_s + 400 * per_token_s
    long_out_s = crossed_s + 1e-4 + stage_s(400, 0, 0, 1, False)
    short_out_s = max(crossed_s + 5 * per_token_s + 1e-4, long_out_s) + stage_s(5, 0, 0, 1, False)
    ids_crossed_s = long_out_s + 8 * 400 / 1e7
    short_back_s = max(short_out_s, ids_crossed_s) + 8 * 5 / 1e7 + 1e-4
    assert first_token_s(made, requests[0]) == pytest.approx(ids_crossed_s + 1e-4, abs=1e-9)
    assert first_token_s(made, requests[1]) == pytest.approx(short_back_s, abs=1e-9)


def test_eight_micro_batches_over_four_stages_are_what_stepping_finds() -> None:
    with private("sim", 4, on=ON, kv_blocks=512) as made:
        stages = [(one, range(i, i + 1)) for i, one in enumerate(made.instances)]
        pipe = made.cluster.pipeline(stages)
        batches = [[made.request(30 + 7 * i, 9) for _ in range(4)] for i in range(8)]

        async def story() -> None:
            for batch in batches:
                await prefill(pipe, batch)
            made.recorder.events.append({"kind": "mark", "at_s": made.loop.now})
            tasks = [made.loop.spawn(finish(pipe, batch), name="batch") for batch in batches]
            for task in tasks:
                await made.loop.wait(task.finished)

        made.run(story())
        began_s = next(e["at_s"] for e in made.recorder.events if e["kind"] == "mark")
    hops = [hop_s(4)] * 3 + [ids_s(4)]
    entries = [began_s] * 8
    for step in range(8):
        flights = []
        for i, batch in enumerate(batches):
            context = sum(r.prompt_tokens + 1 + step for r in batch)
            times = [stage_s(0, 4, context, 1, k == 0) for k in range(4)]
            times[0] += 0 if step else TURNAROUND_S
            flights.append((entries[i], times))
        if step == 0:
            free = [-inf] * 4
        exits = []
        for entry, times in flights:
            at = entry
            for k in range(4):
                at = free[k] = max(at, free[k]) + times[k]
                at += hops[k]
            exits.append(at)
        entries = exits
        for batch, exit_s in zip(batches, exits, strict=True):
            for request in batch:
                times_s = made.recorder.records[request.request_id].token_times_s()
                assert times_s[step + 1] == pytest.approx(exit_s, abs=1e-9)


@pytest.mark.parametrize("at_first", [1.0, 0.5, 0.25])
def test_an_iterations_constants_are_paid_once_a_flight(at_first: float) -> None:
    whole = CostModel(MODEL, ON)
    shares = (at_first, 1 - at_first)
    parts = [CostModel(MODEL, ON, Part(2, share)) for share in shares]
    terms = [part.terms for part in parts]
    for name in ("prefill_s", "decode_s", "chunk_s", "request_s"):
        assert sum(getattr(each, name) for each in terms) == pytest.approx(
            getattr(whole.terms, name)
        )
    for name in ("launch_s", "weights_s", "token_s", "attend_s", "context_s"):
        assert sum(getattr(each, name) for each in terms) == pytest.approx(
            getattr(whole.terms, name)
        )


@pytest.mark.parametrize("num_receivers", [1, 2, 3])
def test_a_chain_takes_one_layer_more_for_each_receiver(num_receivers: int) -> None:
    """(L + n - 1) / L of one receiver's time, over full-duplex links (BlitzScale §5.1)."""
    deep = replace(spec("tiny-llama-deep"), num_layers=16, tie_embeddings=True, vocab_size=64)
    fast = hardware(8, gpus_per_pcie_switch=8, **LINK | {"pcie_latency_s": 0.0})
    node = composed("engine=sim").engine
    node.num_kv_blocks = 8
    empty = {i: range(0) for i in range(1, num_receivers + 1)}
    with testbed.start(
        deep, fast, build(plain(node), "engine"), num_receivers + 1, resident=empty
    ) as made:

        async def story() -> float:
            loads = [
                made.loop.spawn(to.load(range(16), of), name=to.name)
                for of, to in pairwise(made.instances)
            ]
            for load in loads:
                await made.loop.wait(load.finished)
            return made.loop.now

        took_s = made.run(story())
    one_s = sum(len(at) for at in made.instances[0].layout.layer_at) / 1e9
    assert took_s == pytest.approx(one_s * (16 + num_receivers - 1) / 16, rel=0.01)


def test_pipelines_that_cross_take_turns() -> None:
    """An instance in two lines computes for one at a time; nothing is lost or booked twice."""
    with private("sim", 2, on=ON) as made:
        old, new = made.instances
        split = made.cluster.pipeline([(new, range(2)), (old, range(2, DEPTH))])
        ongoing, fresh = [made.request(30, 200)], [made.request(60, 1)]

        async def story() -> None:
            await prefill(old, ongoing)
            task = made.loop.spawn(prefill(split, fresh), name="split")
            running = ongoing
            while running:
                running = await decode(old, running)
            await made.loop.wait(task.finished)

        made.run(story())
        times_s = made.recorder.records[0].token_times_s()
        came_s = first_token_s(made, fresh[0])
    assert times_s[0] < came_s < times_s[-1]
    step_s = (times_s[1:] - times_s[:-1]).min()
    gap_s = (times_s[1:] - times_s[:-1]).max()
    assert gap_s - step_s == pytest.approx(stage_s(60, 0, 0, 2, False) + TURNAROUND_S, rel=0.05)


@examples(30)
@given(
    cut=st.integers(1, DEPTH - 1),
    prompts=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 20)), min_size=1, max_size=6),
)
def test_a_pipeline_generates_every_token_once(cut: int, prompts: list[tuple[int, int]]) -> None:
    with private("sim", 2, on=ON) as made:
        first, second = made.instances
        pipe = made.cluster.pipeline([(first, range(cut)), (second, range(cut, DEPTH))])
        requests = [made.request(*each) for each in prompts]

        async def serve(request: Request) -> None:
            await prefill(pipe, [request])
            await finish(pipe, [request])

        async def story() -> None:
            tasks = [made.loop.spawn(serve(r), name="request") for r in requests]
            for task in tasks:
                await made.loop.wait(task.finished)

        made.run(story())
        for request in requests:
            times_s = made.recorder.records[request.request_id].token_times_s()
            assert len(times_s) == request.output_tokens
            assert (times_s[1:] > times_s[:-1]).all()
        for instance in made.instances:
            audit(instance.kv)
            assert not instance.kv.held


@pytest.mark.parametrize("stages", [1, 2])
def test_a_batch_on_a_loading_instance_waits_for_each_layer_in_its_turn(stages: int) -> None:
    """By hand: layer k begins when it is here and the one before it is computed."""
    slow = hardware(8, gpus_per_pcie_switch=8, **LINK | {"pcie_bytes_per_s": 2e7})
    with private("sim", 3, on=slow, resident={1: range(0)}) as made:
        full, late, last = made.instances
        came_s: dict[int, float] = {}

        def came(layer: int) -> None:
            came_s[layer] = made.loop.now

        async def story() -> float:
            load = made.loop.spawn(late.load(range(DEPTH), full, on_layer=came), name="load")
            await made.loop.wait(late.arrival(0))
            request = made.request(400, 1)
            device: ElasticInstance | Pipeline = late
            if stages == 2:
                device = made.cluster.pipeline([(late, range(3)), (last, range(3, DEPTH))])
            await prefill(device, [request])
            await made.loop.wait(load.finished)
            return first_token_s(made, request)

        token_s = made.run(story())
        layers = 3 if stages == 2 else DEPTH
        share_s = (stage_s(400, 0, 0, layers, first=True) + TURNAROUND_S) / layers
        over_s = 0.0
        for layer in range(layers):
            over_s = max(over_s, came_s[layer]) + share_s
        assert over_s > came_s[0] + layers * share_s, "it has waited"
        if stages == 2:
            hops_s = 2 * 1e-4 + (MODEL.activation_bytes_per_token + 8) * 400 / 2e7
            over_s += stage_s(400, 0, 0, 1, first=False) + hops_s
        assert token_s == pytest.approx(over_s, rel=1e-9)
