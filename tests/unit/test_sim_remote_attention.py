"""Remote attention and chunks of KV in the simulator (KunServe §4.2), against times by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.cost.hardware import Hardware
from harness.cost.law import Part
from harness.cost.model import CostModel
from harness.elastic.fabric import Sending
from harness.elastic.instance import ElasticInstance
from harness.elastic.pipeline import Pipeline, remote_attention_bytes
from harness.request import Request
from harness.running.testbed import Bed, decode, finish, prefill
from tests.elastic import hardware, private, spec

MODEL = spec()
LATENCY_S = 1e-4
STEPS = 20
FRONT, BACK, ALL = range(2), range(2, 4), range(4)
THERE, BACKWARD = remote_attention_bytes(MODEL)


def on(bytes_per_s: float) -> Hardware:
    rates = {"pcie_bytes_per_s": bytes_per_s, "pcie_peak_bytes_per_s": bytes_per_s}
    made = hardware(4, gpus_per_pcie_switch=4, pcie_latency_s=LATENCY_S, **rates)
    return replace(made, calibration=replace(made.calibration, turnaround_s=0.0))


def gaps_s(made: Bed, request: Request) -> list[float]:
    times_s = made.recorder.records[request.request_id].token_times_s()
    return [float(gap) for gap in times_s[1:] - times_s[:-1]]


@pytest.mark.parametrize("bytes_per_s", [1e9, 1e7])
def test_remote_attention_adds_a_round_trip_over_the_link_to_each_layer(bytes_per_s: float) -> None:
    """q, k and v go there, the output comes back; the attention itself moves to the holder."""
    node = on(bytes_per_s)
    with private("sim", 2, on=node) as made:
        first, second = made.instances
        request = made.request(200, 4)

        async def story() -> None:
            await prefill(first, [request])
            pipe = made.cluster.pipeline([(first, FRONT), (second, BACK)])
            pipe.adopt([request], first)
            await finish(pipe, [request])

        made.run(story())
    stages = [CostModel(MODEL, node, Part(2, constants)) for constants in (1.0, 0.0)]
    sent = MODEL.activation_bytes_per_token + 8 + 2 * (THERE + BACKWARD)
    crossing_s = 6 * LATENCY_S + sent / bytes_per_s
    for step, gap_s in enumerate(gaps_s(made, request)):
        computing_s = sum(cost.decode_step(1, 201 + step)[0] for cost in stages)
        assert gap_s == pytest.approx(computing_s + crossing_s, rel=1e-9)


@pytest.mark.parametrize("alone", [True, False])
def test_attention_for_others_slows_the_holder(alone: bool) -> None:
    """Its own decodes, on itself or as a stage, end as much later as it attends for others."""
    node = on(1e9)
    whole = CostModel(MODEL, node)

    def run(*, lends: bool) -> tuple[float, float]:
        """When the holder's own request ends, and how long it has attended for the other."""
        with private("sim", 3, on=node, kv_blocks=256) as made:
            holder, second, third = made.instances
            own, others = made.request(20, 200), made.request(2000, 1 + STEPS)

            async def story() -> None:
                await prefill(holder, [others])
                await prefill(holder, [own])
                server: ElasticInstance | Pipeline = holder
                if not alone:
                    server = made.cluster.pipeline([(holder, ALL)])
                    server.adopt([own], holder)
                serving = made.loop.spawn(finish(server, [own]), name="own")
                if lends:
                    pipe = made.cluster.pipeline([(second, FRONT), (third, BACK)])
                    pipe.adopt([others], holder)
                    await finish(pipe, [others])
                await made.loop.wait(serving.finished)

            made.run(story())
            end_s = float(made.recorder.records[own.request_id].token_times_s()[-1])
        contexts = range(2001, 2001 + STEPS)
        return end_s, sum(whole.attention_s([], context) for context in contexts)

    undisturbed_s, _ = run(lends=False)
    end_s, lent_s = run(lends=True)
    assert lent_s > 0.01
    assert end_s - undisturbed_s == pytest.approx(lent_s, rel=0.05)


PAGE = MODEL.held_kv_bytes_per_token * 16 // MODEL.kv_layers  # of one block and layer


def longest_gap_s(chunk_bytes: int | None) -> tuple[float, float]:
    """The longest gap between tokens of a pipeline whose activations share a link with KV of eight
    requests, and how long that KV is on the link. None: it stays where it is."""
    with private("sim", 2, on=on(1e7), kv_blocks=256) as made:
        first, second = made.instances
        request, idle = made.request(20, 1000), [made.request(320, 2) for _ in range(8)]

        async def story() -> float:
            pipe = made.cluster.pipeline([(first, FRONT), (second, BACK)])
            await prefill(first, idle)
            await prefill(pipe, [request])
            sending = Sending("exchange", chunk_bytes=chunk_bytes)
            start_s = made.loop.now
            tasks = [
                made.loop.spawn(
                    made.cluster.move_kv([one], BACK, first, second, sending), name="move"
                )
                for one in (idle if chunk_bytes else [])
            ]
            running = await decode(pipe, [request], max_steps=1)
            while not all(task.done for task in tasks):
                running = await decode(pipe, running, max_steps=1)
            return made.loop.now - start_s

        took_s = made.run(story())
    return max(gaps_s(made, request)), took_s


def test_activations_wait_for_the_chunk_under_way_and_for_no_other() -> None:
    """A chunk lengthens a gap by its time on the link at most, though many others wait."""
    quiet_s, _ = longest_gap_s(None)
    gap_s, took_s = longest_gap_s(2 * PAGE)
    chunk_s = LATENCY_S + 2 * PAGE / 1e7
    assert took_s > 20 * chunk_s
    assert quiet_s + chunk_s / 4 < gap_s < quiet_s + chunk_s + 3 * LATENCY_S


def test_large_chunks_lengthen_the_gap_between_tokens() -> None:
    small_s, _ = longest_gap_s(2 * PAGE)
    large_s, _ = longest_gap_s(40 * PAGE)
    assert large_s - small_s > 10 * PAGE / 1e7
