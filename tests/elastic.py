"""Test beds of elastic instances, simulated and live, and what undisturbed runs generate.

Live workers take seconds to start, so tests share them: four of each model, as they were after the
test before. What a test needs to be smaller or empty is made so.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest

from harness.configuration.config import build
from harness.configuration.options import plain
from harness.cost.hardware import Hardware
from harness.model_spec import ModelSpec
from harness.running import testbed
from harness.running.testbed import Bed
from tests.accounts import audit
from tests.exactness import ClearBed, plain_tokens
from tests.running import composed, hardware_profile, model_spec

ENGINES = ("sim", pytest.param("torch", marks=pytest.mark.live))
KV_SHAPES = ("tiny-llama", "tiny-llama-deep", "tiny-llama-wide")
NUM_SHARED, SHARED_BLOCKS = 4, 64
DEPTH = 4  # layers of tiny-llama
ON_EVERY_ENGINE = [
    pytest.mark.parametrize("engine", ENGINES),
    pytest.mark.usefixtures("forked_workers"),
]


@cache
def spec(name: str = "tiny-llama") -> ModelSpec:
    return model_spec(name)


@cache
def hardware(num_devices: int = 4, **changes: float) -> Hardware:
    return replace(
        hardware_profile("local"), num_devices=num_devices, devices_per_node=num_devices, **changes
    )


@contextmanager
def private(
    engine: str, num_instances: int, *, model: str = "tiny-llama", kv_blocks: int = SHARED_BLOCKS,
    page_layers: int | None = 1, resident: Mapping[int, range] | None = None,
    on: Hardware | None = None, attention: str = "auto", **elastic: Any,
) -> Iterator[Bed]:  # fmt: skip
    """A bed of its own: of tests that kill, or whose links are paced. A live one's prompts are
    clear (`tests.exactness`)."""
    node = composed(f"engine={engine}").engine
    node.num_kv_blocks = kv_blocks
    if engine == "torch":
        node.device, node.num_threads, node.attention = "cpu", 1, attention
        for key, value in elastic.items():
            node.elastic[key] = value
    with testbed.start(
        spec(model), on or hardware(), build(plain(node), "engine"), num_instances,
        page_layers=page_layers, resident=resident,
    ) as bed:  # fmt: skip
        kind = ClearBed if engine == "torch" else Bed
        yield kind(**{each.name: getattr(bed, each.name) for each in fields(Bed)})


class Beds:
    """`bed` as `private`, on shared workers where it is live."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._live: dict[str, Bed] = {}

    @contextmanager
    def __call__(
        self, engine: str, num_instances: int, *, model: str = "tiny-llama",
        kv_blocks: int = SHARED_BLOCKS, resident: Mapping[int, range] | None = None,
    ) -> Iterator[Bed]:  # fmt: skip
        if engine == "sim":
            with private(
                engine, num_instances, model=model, kv_blocks=kv_blocks, resident=resident
            ) as made:
                yield made
                _check_after(made)
            return
        if model not in self._live:
            bed = private("torch", NUM_SHARED, model=model)
            self._live[model] = self._stack.enter_context(bed)
        whole = self._live[model]
        every = list(whole.instances)
        shown = every[:num_instances]
        made = replace(whole, first=whole.made)
        whole.run(self._prepare(shown, kv_blocks, resident or {}))
        whole.cluster.instances[:] = shown
        try:
            yield made
        finally:
            whole.made = made.made
            whole.cluster.instances[:] = every
        _check_after(made)
        whole.run(self._restore(shown, every))

    async def _prepare(
        self, shown: list[Any], kv_blocks: int, resident: Mapping[int, range]
    ) -> None:
        for number, instance in enumerate(shown):
            fewer = (SHARED_BLOCKS - kv_blocks) * len(instance.kv.all_groups)
            if fewer:
                assert instance.kv.reserve(fewer, "test")
            if number in resident:
                assert not resident[number]
                await instance.drop(range(instance.model.num_layers))

    async def _restore(self, shown: list[Any], every: list[Any]) -> None:
        depth = range(shown[0].model.num_layers)
        for instance in shown:
            if (kept := instance.kv.reserved.get("test", 0)) > 0:
                instance.kv.reserve(-kept, "test")
        full = next(each for each in every if each.resident == frozenset(depth))
        for instance in shown:
            await instance.load(depth, full)


def _check_after(made: Bed) -> None:
    check(made)
    assert not any(each.kv.held for each in made.instances), "KV is left to the tests behind it"


def halves(made: Bed) -> Any:
    """The first two instances as a pipeline."""
    first, second = made.instances[:2]
    return made.cluster.pipeline([(first, range(2)), (second, range(2, DEPTH))])


def check(made: Bed) -> None:
    """No page is lost or held twice, and every token was stamped once."""
    for instance in made.instances:
        audit(instance.kv)
        if instance.tables is not None:
            instance.tables.reconcile([])
            audit(instance.tables)
    for request in made.requests:
        times = made.recorder.records[request.request_id].token_times_s()
        assert len(times) == request.generated_tokens, request
        assert (times[1:] >= times[:-1]).all(), request


def run_exactly(made: Bed, story: Coroutine[Any, Any, None]) -> None:
    """Runs it. A live bed's tokens are then those of an undisturbed run."""
    made.run(story)
    if isinstance(made, ClearBed):
        assert generated(made) == undisturbed(made)


def undisturbed(made: Bed) -> dict[int, list[int]]:
    """What a plain engine generates for those of the bed's requests that have ended."""
    ended = [request for request in made.requests if request.finished]
    return plain_tokens(ended, {request.model: made.model for request in ended})


def generated(made: Bed) -> dict[int, list[int]]:
    return {r.request_id: made.tokens(r) for r in made.requests if r.finished}


def host_file(cluster: Any, name: str) -> int:
    """The number, in this process, of a file that stands for a live node's DRAM."""
    number: int = cluster._executors._workers.launcher._host.files[name]
    return number
