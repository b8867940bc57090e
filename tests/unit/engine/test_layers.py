"""Layers one by one: executed in ranges, dropped and loaded, drawn from a seed, saved and read."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from harness.engine import attention
from harness.engine.linear import TorchLinear
from harness.engine.padding import padding_rows
from harness.engine.warm_up import warm_up
from harness.engine.weights import HostWeights
from harness.engine.work import BatchWork, Chunk
from tests.unit.engine.serving import CPU, SPEC, VARIANTS, loaded, runner_of

PROMPT = list(range(20, 50))
CHUNKS = [(PROMPT, [1, 2, 3, 4]), (PROMPT[:9], [5, 6])]  # ids and blocks


def chunks_of(*samples: bool, of: Sequence[tuple[list[int], list[int]]] = CHUNKS) -> BatchWork:
    """A batch of whole prompts, of which some sample."""
    chunks = [Chunk(0, len(ids), each) for each, (ids, _) in zip(samples, of, strict=False)]
    ids = [token for ids, _ in of[: len(samples)] for token in ids]
    return BatchWork(chunks, [], ids, [blocks for _, blocks in of[: len(samples)]])


def decodes_of(tokens: list[int], position: int, blocks: Sequence[Sequence[int]]) -> BatchWork:
    return BatchWork([], [position] * len(tokens), tokens, blocks)


@pytest.mark.parametrize("split", range(SPEC.num_layers + 1))
def test_layer_ranges_in_turn_equal_the_whole(split: int) -> None:
    runner = runner_of(loaded(SPEC), SPEC)
    with torch.inference_mode():
        work = chunks_of(True, False)
        step, _ = runner.step(work, runner.attention(work))
        hidden = runner.embed(torch.tensor(PROMPT + PROMPT[:9]), step)
        whole = runner.forward(hidden, step, 0, SPEC.num_layers)
        first = runner.forward(hidden, step, 0, split)
        assert torch.equal(runner.forward(first, step, split, SPEC.num_layers), whole)


@pytest.mark.parametrize("num_rows", [1, 16, 17, 31, 33, 100, 255, 257, 2047, 2048, 5000])
def test_padding_is_small_and_leaves_few_numbers_of_rows(num_rows: int) -> None:
    assert 0 <= padding_rows(num_rows) <= num_rows / 16
    assert len({n + padding_rows(n) for n in range(1, num_rows + 1)}) <= 16 * num_rows.bit_length()


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_iterations_have_no_product_that_was_not_prepared(
    monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    spec = replace(SPEC, **VARIANTS[family])
    layers = loaded(spec)
    seen: set[tuple[tuple[int, ...], int]] = set()  # the matrix's shape, and rows

    def written_down(name: str) -> None:
        real = getattr(TorchLinear, name)

        def product(self: TorchLinear, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
            seen.add((tuple(self._weight.shape), len(x)))
            return real(self, x, *more)

        monkeypatch.setattr(TorchLinear, name, product)

    written_down("__call__")
    written_down("plus")
    warm_up(spec, layers.on_device[0], layers.ends, CPU, 2048)
    prepared, seen = seen, set()
    runner, rng = runner_of(layers, spec), random.Random(0)
    for _ in range(40):
        sizes = [rng.randrange(1, 200) for _ in range(rng.randrange(4))]
        chunks = [Chunk(0, n, rng.random() < 0.7) for n in sizes]
        decodes = rng.randrange(0 if chunks else 1, 60)
        blocks = [list(range(1, 30))] * len(chunks) + [[40]] * decodes
        work = BatchWork(chunks, [3] * decodes, [7] * (sum(sizes) + decodes), blocks)
        list(runner.steps(work, 1 if chunks else 3))
    assert seen
    assert seen <= prepared


def test_padding_changes_no_token() -> None:
    """39 rows are padded; the same chunks one by one are not."""
    runner = runner_of(loaded(SPEC), SPEC)
    work = chunks_of(True, True)
    step, _ = runner.step(work, runner.attention(work))
    assert step.num_padding_rows > 0
    (together,) = runner.steps(work, 1)
    apart = [next(runner.steps(chunks_of(True, of=[chunk]), 1)) for chunk in CHUNKS]
    assert [together] == [[token for tokens in apart for token in tokens]]


def test_padding_changes_no_token_of_decodes() -> None:
    """33 of them are padded, one is not; nor is a chunk that picks nothing."""
    runner = runner_of(loaded(SPEC), SPEC)
    assert list(runner.steps(chunks_of(False), 1)) == [[]]
    tokens, blocks = list(range(33)), [[1 + token] for token in range(33)]
    work = decodes_of(tokens, 3, blocks)
    step, _ = runner.step(work, runner.attention(work))
    assert step.num_padding_rows == 1
    together = list(runner.steps(work, 3))
    apart = [
        list(runner.steps(decodes_of([token], 3, [mine]), 3))
        for token, mine in zip(tokens, blocks, strict=True)
    ]
    assert [[token for (token,) in steps] for steps in zip(*apart, strict=True)] == together


def test_layers_that_are_loaded_again_run_as_before() -> None:
    layers = loaded(SPEC)
    runner, prompt = runner_of(layers, SPEC), chunks_of(True)
    before = list(runner.steps(prompt, 1))
    layers.on_device.pop(1)
    with pytest.raises(KeyError):
        list(runner.steps(prompt, 1))
    layers.load()
    assert list(runner.steps(prompt, 1)) == before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_iterations_can_be_taken_one_by_one_or_at_once(dtype: str) -> None:
    spec = replace(SPEC, dtype=dtype)
    runner = runner_of(loaded(spec), spec)
    ((token,),) = runner.steps(chunks_of(True), 1)
    blocks = [[1, 2, 3, 4, 5, 6]]
    at_once = list(runner.steps(decodes_of([token], len(PROMPT), blocks), 12))
    one_by_one = []
    for position in range(len(PROMPT), len(PROMPT) + 12):
        ((token,),) = runner.steps(decodes_of([token], position, blocks), 1)
        one_by_one.append([token])
    assert one_by_one == at_once


@pytest.mark.parametrize("kept_bytes", [0, 2**30])
def test_decodes_of_scattered_blocks_see_the_tokens_of_earlier_steps(
    kept_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests whose blocks lie far apart, so that they are copied together, over two blocks'
    worth of steps: what is added to the copies is what a step that copies anew finds."""
    monkeypatch.setattr(attention, "KEPT_BYTES", kept_bytes)
    runner = runner_of(loaded(SPEC), SPEC)
    blocks = [[3, 40, 9, 60], [50, 20, 55, 30]]
    size, start = runner._cache.block_tokens, 5
    chunks = chunks_of(True, True, of=[(PROMPT[:start], each) for each in blocks])
    (tokens,) = runner.steps(chunks, 1)
    decodes: Any = runner.attention(decodes_of(tokens, start, blocks))
    assert decodes._decode._keeps == (kept_bytes > 0)
    at_once = list(runner.steps(decodes_of(tokens, start, blocks), 2 * size))
    one_by_one, given = [], tokens
    for position in range(start, start + 2 * size):
        (given,) = runner.steps(decodes_of(given, position, blocks), 1)
        one_by_one.append(given)
    assert one_by_one == at_once
    assert len({tuple(step) for step in at_once}) > size


def test_layers_and_seeds_differ() -> None:
    layers = [HostWeights(SPEC).tensors(i)["qkv"] for i in (0, 1)]
    layers.append(HostWeights(replace(SPEC, seed=1)).tensors(0)["qkv"])
    assert not torch.equal(layers[0], layers[1])
    assert not torch.equal(layers[0], layers[2])
