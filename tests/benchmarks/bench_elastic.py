"""Elastic instances live and simulated: stages, chains, loads and exchanges, in seconds.

    python -m tests.benchmarks.bench_elastic [--rounds 5] [--json FILE] [--page FILE]

Each story runs on worker processes whose layers and links are paced, and in simulation with the
same layer time and the same links: what is compared is the machinery between them, not the
machine's arithmetic. `by hand` is what the story would take if nothing cost anything but those.
Live times are medians of the rounds; the ratio is simulated over live. `--page` has its table, the
one that begins with `HEAD`, written anew.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from harness.configuration.config import build
from harness.configuration.options import plain
from harness.cost.hardware import Hardware, StepCoefficients, pair_key
from harness.elastic.device_layout import layer_weight_bytes
from harness.records.manifest import git_revision, machine
from harness.request import Batch, Request
from harness.running import testbed
from harness.running.testbed import Bed, decode, prefill
from tests.running import composed, hardware_profile, model_spec

LAYERS = 16
LAYER_S = 0.002  # several times what a layer of the model takes here
LINK_BYTES_PER_S = 2e8  # a layer's weights in about six layer times (BlitzScale §5.2)
STEPS = 24
MODEL = replace(model_spec("tiny-llama"), name="tiny-llama-16", num_layers=LAYERS)
LAYER_BYTES = MODEL.layer_bytes

HEAD = "| | by hand | simulated | live | simulated / live |\n|---|---|---|---|---|\n"

Story = Callable[[Bed], Coroutine[Any, Any, float]]


@dataclass(frozen=True, slots=True)
class Case:
    """`resident`: by instance, the layers that it begins with, where not all."""

    name: str
    num_instances: int
    resident: dict[int, range]
    story: Story
    by_hand_s: float


def hardware() -> Hardware:
    local = hardware_profile("local")
    paced = StepCoefficients(
        launch_s=LAYER_S * LAYERS, weights_s=0.0, token_s=0.0, attend_s=0.0, context_s=0.0,
        prefill_s=0.0, decode_s=0.0, chunk_s=0.0, request_s=0.0, wide_s=0.0,
    )  # fmt: skip
    calibration = replace(local.calibration, measured={pair_key(MODEL.name, 1): paced})
    return replace(
        local, num_devices=4, devices_per_node=4, nvlink_copy_bytes_per_s=LINK_BYTES_PER_S,
        nvlink_copy_latency_s=1e-4, calibration=calibration,
    )  # fmt: skip


def pipeline(num_stages: int, num_batches: int) -> Story:
    """`num_batches` micro-batches decode STEPS tokens each over `num_stages`: the whole."""

    async def story(bed: Bed) -> float:
        each = LAYERS // num_stages
        pipe = bed.cluster.pipeline(
            [(one, range(i * each, (i + 1) * each)) for i, one in enumerate(bed.instances)]
        )
        batches = [[bed.request(16, STEPS + 8) for _ in range(2)] for _ in range(num_batches)]
        for batch in batches:
            await prefill(pipe, batch)
        begin_s = bed.loop.now

        async def fly(batch: Sequence[Request]) -> None:
            for request in batch:
                assert pipe.kv.grow(request, request.computed_tokens + 1)
            assert await pipe.execute(Batch(decodes=list(batch)), max_steps=STEPS) == STEPS

        tasks = [bed.loop.spawn(fly(batch), name="flight") for batch in batches]
        for task in tasks:
            await bed.loop.wait(task.finished)
        return bed.loop.now - begin_s

    return story


def chain(num_receivers: int) -> Story:
    """Each receiver loads every layer from the one before it."""

    async def story(bed: Bed) -> float:
        pairs = list(zip(bed.instances, bed.instances[1:], strict=False))[:num_receivers]
        begin_s = bed.loop.now
        loads = [
            bed.loop.spawn(target.load(range(LAYERS), source), name="load")
            for source, target in pairs
        ]
        for load in loads:
            await bed.loop.wait(load.finished)
            assert load.result is True
        return bed.loop.now - begin_s

    return story


def load_beside(direction: str) -> Story:
    """A load from a peer while KV of a long request moves the same way, or the other way."""

    async def story(bed: Bed) -> float:
        full, empty = bed.instances[:2]
        half = range(LAYERS // 2, LAYERS)
        source, target = (full, empty) if direction == "same" else (empty, full)
        request = bed.request(600, 4)
        await prefill(source, [request])
        await empty.drop(half)
        kept = range(LAYERS // 2)
        begin_s = bed.loop.now
        load = bed.loop.spawn(empty.load(half, full), name="load")
        move = bed.loop.spawn(bed.cluster.move_kv([request], kept, source, target), name="move")
        for task in (load, move):
            await bed.loop.wait(task.finished)
            assert task.result is True
        return bed.loop.now - begin_s

    return story


async def exchange(bed: Bed) -> float:
    """KV of half of the layers changes sides while both requests go on decoding in a pipeline."""
    begin_s, end_s = await exchanged(bed)
    return end_s - begin_s


async def longest_gap(bed: Bed) -> float:
    """Between two tokens of a request, of those that come while that exchange goes on."""
    begin_s, end_s = await exchanged(bed)
    longest_s = 0.0
    for request in bed.requests:
        times_s = bed.recorder.records[request.request_id].token_times_s()
        beside = (times_s[1:] > begin_s) & (times_s[:-1] < end_s)
        longest_s = max(longest_s, float((times_s[1:] - times_s[:-1])[beside].max()))
    return longest_s


async def exchanged(bed: Bed) -> tuple[float, float]:
    """From when to when."""
    first, second = bed.instances[:2]
    front, back = range(LAYERS // 2), range(LAYERS // 2, LAYERS)
    requests = {one: bed.request(400, 80) for one in (first, second)}
    for one, request in requests.items():
        await prefill(one, [request])
    pipe = bed.cluster.pipeline([(first, front), (second, back)])
    for one, request in requests.items():
        pipe.adopt([request], one)
    begin_s = bed.loop.now
    moves = [
        bed.loop.spawn(bed.cluster.move_kv([requests[first]], back, first, second), name="move"),
        bed.loop.spawn(bed.cluster.move_kv([requests[second]], front, second, first), name="move"),
    ]
    alive = list(requests.values())
    while not all(move.done for move in moves):
        alive = await decode(pipe, alive, max_steps=1)
    end_s = bed.loop.now
    await decode(pipe, alive, max_steps=1)  # the gap that the end is in
    return begin_s, end_s


async def remote_attention(bed: Bed) -> float:
    """A step whose second half has its KV on the first instance: STEPS of them."""
    first, second = bed.instances[:2]
    request = bed.request(64, STEPS + 8)
    await prefill(first, [request])
    pipe = bed.cluster.pipeline([(first, range(8)), (second, range(8, LAYERS))])
    pipe.adopt([request], first)
    begin_s = bed.loop.now
    await decode(pipe, [request], max_steps=STEPS)
    return bed.loop.now - begin_s


def chained_s(num_receivers: int) -> float:
    """A receiver's link carries one layer at a time, each once the one before it has it. With
    layers of one size that is (layers + receivers - 1) of them; the ends are larger."""
    had_s = [0.0] * LAYERS  # when the last receiver so far has each
    for _ in range(num_receivers):
        free_s = 0.0
        for layer in range(LAYERS):
            free_s = max(free_s, had_s[layer]) + layer_weight_bytes(MODEL, layer) / LINK_BYTES_PER_S
            had_s[layer] = free_s
    return had_s[-1]


def cases() -> list[Case]:
    step_s, layer_load_s = LAYERS * LAYER_S, LAYER_BYTES / LINK_BYTES_PER_S
    kv_s = 600 * MODEL.kv_bytes_per_token / 2 / LINK_BYTES_PER_S
    half_s = LAYERS // 2 * layer_load_s
    found = [
        Case(f"pipeline, {s} stages, {m} micro-batches", s, {}, pipeline(s, m),
             STEPS * max(m * step_s / s, step_s) + step_s * (1 - 1 / s) * (m >= s > 1))
        for s, m in ((1, 1), (2, 1), (2, 2), (4, 4), (4, 8))
    ]  # fmt: skip
    found += [
        Case(f"chain of {n}", n + 1, {i: range(0) for i in range(1, n + 1)}, chain(n),
             chained_s(n))
        for n in (1, 2, 3)
    ]  # fmt: skip
    found += [
        Case("half a model and KV, same direction", 2, {}, load_beside("same"), half_s + kv_s),
        Case("half a model and KV, opposite directions", 2, {}, load_beside("opposite"),
             max(half_s, kv_s)),
        Case("KV exchange while decoding", 2, {}, exchange,
             400 * MODEL.kv_bytes_per_token / 2 / LINK_BYTES_PER_S),
        Case("longest gap between tokens beside it", 2, {}, longest_gap, step_s),
        Case(f"{STEPS} steps with remote attention", 2, {}, remote_attention, STEPS * step_s),
    ]  # fmt: skip
    return found


def time_s(case: Case, engine: str) -> float:
    node = composed(f"engine={engine}").engine
    node.num_kv_blocks = 192
    if engine == "torch":
        node.device, node.num_threads = "cpu", 1
        node.elastic.paced, node.elastic.layer_s = True, LAYER_S
    with testbed.start(
        MODEL, hardware(), build(plain(node), "engine"), case.num_instances,
        page_layers=1, resident=case.resident,
    ) as bed:  # fmt: skip
        taken_s: float = bed.run(case.story(bed))
    return taken_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    arguments = parser.parse_args()
    rows = []
    print(f"{'':44}{'by hand':>9}{'simulated':>11}{'live':>8}{'ratio':>7}   live, every round")
    for case in cases():
        if arguments.only not in case.name:
            continue
        simulated_s = time_s(case, "sim")
        live_s = [time_s(case, "torch") for _ in range(arguments.rounds)]
        rows.append(
            {
                "name": case.name,
                "by_hand_s": round(case.by_hand_s, 5),
                "simulated_s": round(simulated_s, 5),
                "live_s": [round(s, 5) for s in live_s],
            }
        )
        middle_s = median(live_s)
        print(
            f"{case.name:44}{case.by_hand_s:9.3f}{simulated_s:11.3f}{middle_s:8.3f}"
            f"{simulated_s / middle_s:7.2f}   {' '.join(f'{s:.3f}' for s in live_s)}",
            flush=True,
        )
    if arguments.json:
        content = {
            "date": date.today().isoformat(), "machine": machine(), "git": git_revision(),
            "layer_s": LAYER_S,
            "link_bytes_per_s": LINK_BYTES_PER_S, "layer_bytes": LAYER_BYTES, "cases": rows,
        }  # fmt: skip
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    if arguments.page:
        text = arguments.page.read_text()
        arguments.page.write_text(text.replace(table_of(text), table(rows)))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """For a page, of the rows as JSON has them."""
    lines = []
    for row in rows:
        live_s = median(row["live_s"])
        times = f"{row['by_hand_s']:.3f} | {row['simulated_s']:.3f} | {live_s:.3f}"
        lines.append(f"| {row['name']} | {times} | {row['simulated_s'] / live_s:.2f} |\n")
    return HEAD + "".join(lines)


def table_of(page: str) -> str:
    """The one that the page has."""
    begin = page.index(HEAD)
    return page[begin : page.index("\n\n", begin) + 1]


if __name__ == "__main__":
    main()
