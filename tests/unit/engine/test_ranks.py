"""Tensor parallelism: the ranks' parts together are the model, and they compute its steps."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.engine.rank_workers import check_ranks
from harness.engine.ranks import RankRunner, join, sum_products
from harness.engine.runner import Runner
from harness.engine.shards import ShardedWeights, rank_spec
from harness.engine.weights import ENDS, HostWeights
from harness.engine.work import BatchWork, Chunk
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.placement import Elastic, Placement
from tests.unit.engine.serving import CPU, SPEC, loaded, runner_of

TWO = replace(SPEC, tp=2, qkv_bias=True)
PROMPT = BatchWork([Chunk(0, 24, True)], [], list(range(7, 31)), [[1, 2, 3, 4]])
DECODE = BatchWork([], [24], [5], [[1, 2, 3, 4]])


@pytest.mark.parametrize("layer", [ENDS, 1])
def test_the_parts_of_all_ranks_are_the_model(layer: int) -> None:
    whole = HostWeights(TWO).tensors(layer)
    first, second = (ShardedWeights(TWO, rank).tensors(layer) for rank in (0, 1))
    q, kv, wide = (32, 16, 48)  # of each rank
    fused = {"qkv": [q, kv, kv], "qkv_bias": [q, kv, kv], "gate_up": [wide, wide]}
    assert first.keys() == whole.keys()
    for name, tensor in whole.items():
        pair = (first[name], second[name])
        if name in fused:
            rows = zip(*(part.split(fused[name]) for part in pair), strict=True)
            assert torch.equal(torch.cat([part for parts in rows for part in parts]), tensor)
        elif name in ("o", "down"):
            assert torch.equal(torch.cat(pair, 1), tensor)
        else:
            assert torch.equal(first[name], tensor)
            assert torch.equal(second[name], tensor)


def test_a_ranks_bytes_are_those_of_its_tensors() -> None:
    source = ShardedWeights(TWO, 1)
    tensors = [each for i in (ENDS, *range(3)) for each in source.tensors(i).values()]
    assert rank_spec(TWO).weight_bytes == sum(tensor.nbytes for tensor in tensors)
    assert 2 * rank_spec(TWO).kv_bytes_per_token == SPEC.kv_bytes_per_token


def test_a_tensor_that_nobody_knows_how_to_divide_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HostWeights, "tensors", lambda self, layer: {"experts": torch.zeros(4)})
    with pytest.raises(UsageError, match=r"model\.tp=2 cannot divide experts; valid for test: 1"):
        ShardedWeights(TWO, 0).tensors(0)


def logits(runner: Runner) -> list[torch.Tensor]:
    """Of the prompt's last token, and of the token after it."""
    with torch.inference_mode():
        found = []
        for batch in (PROMPT, DECODE):
            step, sampled = runner.step(batch, runner.attention(batch))
            hidden = runner.embed(torch.tensor(batch.ids), step)
            hidden = runner.forward(hidden, step, 0, runner.spec.num_layers)
            row = hidden[:1] if sampled is None else hidden[sampled]
            found.append(runner._decoder.logits(row))
    return found


def of_rank(rank: int, meeting: Path) -> tuple[list[torch.Tensor], list[list[int]], list[bool]]:
    """In a process of its own: logits, the tokens of a prompt and a run, and what was agreed on."""
    join(rank, 2, os.open(meeting, os.O_RDWR | os.O_CREAT), CPU)
    layers = loaded(TWO, rank=rank)
    sum_products(layers.on_device.values())
    runner = runner_of(layers, rank_spec(TWO), kind=RankRunner)
    found = logits(runner)
    tokens = [*runner.steps(PROMPT, 1), *runner.steps(DECODE, 4)]
    return found, tokens, [runner.agreed(rank == 0), runner.agreed(rank == 1)]


@pytest.mark.live
def test_two_ranks_compute_the_step_of_one_and_end_with_the_first(tmp_path: Path) -> None:
    one = replace(TWO, tp=1)
    runner = runner_of(loaded(one), one)
    expected = logits(runner)
    tokens = [*runner.steps(PROMPT, 1), *runner.steps(DECODE, 4)]
    with ProcessPoolExecutor(2, get_context("spawn")) as ranks:
        both = [ranks.submit(of_rank, rank, tmp_path / "meeting") for rank in (0, 1)]
        found = [each.result(120) for each in both]
    for got, generated, agreed in found:
        for mine, right in zip(got, expected, strict=True):
            torch.testing.assert_close(mine, right, atol=1e-4, rtol=0)
        assert generated == tokens
        assert agreed == [True, False]


def asked(spec: ModelSpec, *, elastic: Elastic | None = None, model: str | None = "test") -> Any:
    placement = Placement(devices=range(spec.tp), model=model, elastic=elastic)
    return SimpleNamespace(models={"test": spec}, placements=[placement])


def test_what_ranks_cannot_share_is_refused() -> None:
    check_ranks(asked(TWO), 0)
    with pytest.raises(UsageError, match=r"model\.tp=4 .* the 2 KV heads .* valid up to 16: 1, 2$"):
        check_ranks(asked(replace(TWO, tp=4)), 0)
    for placed in ({"elastic": Elastic()}, {"model": None}):
        with pytest.raises(UsageError, match=r"one model for good, as of system=vllm"):
            check_ranks(asked(TWO, **placed), 0)
        check_ranks(asked(SPEC, **placed), 0)
    lends = Placement(devices=range(1), model="lends", own=replace(TWO, name="lends"))
    moving = SimpleNamespace(models={}, placements=[replace(lends, elastic=Elastic())])
    with pytest.raises(UsageError, match=r"model\.tp=2 .* one model for good"):
        check_ranks(moving, 0)
    with pytest.raises(UsageError, match=r"a GPU for each rank, and workers see 1: "):
        check_ranks(asked(TWO), 1)
    check_ranks(asked(TWO), 2)
