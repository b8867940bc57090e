"""KunServe on real workers: whatever is dropped, exchanged, restored and killed meanwhile, every
request gets the tokens of an undisturbed run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from harness.configuration.config import build
from harness.configuration.options import plain
from harness.request import Request
from harness.running import testbed
from tests.elastic import check, generated, hardware, private, spec, undisturbed
from tests.kunserve import Story, burst, serve
from tests.running import composed

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("forked_workers")]

MEMORY = 48  # KV blocks of 16 tokens
NUM = 20
torch.set_num_threads(1)  # of the undisturbed run, in this process
EXPECTED: dict[str, dict[int, list[int]]] = {}  # by model; the burst is the same in every test


def served(
    instances: int, *overrides: str, kill: tuple[Callable[[Story], bool], int] | None,
    model: str = "tiny-llama",
) -> Story:  # fmt: skip
    with private("torch", instances, kv_blocks=MEMORY, model=model) as bed:
        story = serve(bed, burst(NUM), *overrides, kill=kill, rest_s=1.5)
        check(bed)
        assert all(request.finished for request in bed.requests)
        EXPECTED[model] = EXPECTED.get(model) or undisturbed(bed)
        assert generated(bed) == EXPECTED[model]
        return story


# Live with tiny-llama it is run on nodes, and here by the tests of deaths.
@pytest.mark.parametrize(
    ("exchange", "model"), [("blocking", "tiny-llama"), ("live", "tiny-mixtral")]
)
def test_a_burst_is_served_by_dropping_parameters(exchange: str, model: str) -> None:
    story = served(2, f"system.exchange={exchange}", kill=None, model=model)
    order = [event["kind"] for event in story.bed.recorder.events]
    steps = [order.index(kind) for kind in ("drop", "exchange", "load", "restore")]
    assert steps == sorted(steps)
    assert story.seen("exchange")[0]["fields"]["moves"] > 0
    assert {instance.resident for instance in story.bed.instances} == {frozenset(range(4))}


KILLS: dict[str, tuple[Callable[[Story], bool], int]] = {
    "during the exchange": (lambda s: s.moving and not s.seen("restore"), 1),
    "during the restore": (lambda s: s.loading, 0),
}


@pytest.mark.parametrize("when", KILLS)
def test_tokens_are_right_after_a_death(when: str) -> None:
    story = served(2, kill=KILLS[when])
    assert len(story.seen("lost")) == 1
    assert story.seen("recover")


@pytest.mark.parametrize("layer_s", [0.02, 1e-6])
def test_a_stage_between_two_others_is_not_taken_for_stuck(layer_s: float) -> None:
    """It sends the harness nothing, and with micro-batches it always has something to do. The run
    tells what the pace was, and whether computing took longer."""
    node = composed("engine=torch").engine
    node.num_kv_blocks, node.device, node.num_threads, node.step_timeout_s = MEMORY, "cpu", 1, 2
    node.elastic.layer_s = layer_s
    engine = build(plain(node), "engine")
    with testbed.start(spec(), hardware(), engine, 3, page_layers=1) as bed:
        ranges = (range(2), range(2, 3), range(3, 4))
        pipe = bed.cluster.pipeline(list(zip(bed.instances, ranges, strict=True)))

        async def serve(request: Request) -> None:
            await testbed.prefill(pipe, [request])
            while not request.finished:
                await testbed.decode(pipe, [request], max_steps=4)

        async def story() -> None:
            tasks = [bed.loop.spawn(serve(bed.request(9, 30)), name="batch") for _ in range(3)]
            for task in tasks:
                await bed.loop.wait(task.finished)

        bed.run(story())
        pace = [e["fields"] for e in bed.recorder.events if e["kind"] == "pace"]
        assert sum(each["paced_s"] for each in pace) == pytest.approx(3 * 30 * layer_s)
        if layer_s == 0.02:
            assert bed.loop.now > 3
        else:
            assert all(each["behind_s"] > each["paced_s"] for each in pace)
