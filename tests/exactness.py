"""What a plain engine generates, and prompts of which it does so by a clear margin.

Engines that batch, cut or place work otherwise sum in another order, and logits differ in their
last digits: by 4e-6 at most for the three tiny models, ten prompts each, in float32. Where a step's
two best logits are as near as that, right engines may pick different tokens. So the prompts of
tests that compare tokens are ones whose two best logits are more than `MIN_GAP` apart at each step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import count
from typing import NamedTuple

import torch

from harness.device.prompts import prompt_ids
from harness.engine.block_tables import FIRST_BLOCK
from harness.engine.kv_cache import new_cache
from harness.engine.linear import LoadedLayers
from harness.engine.model import TransformerDecoder
from harness.engine.runner import Runner
from harness.engine.torch_kernels import TorchKernels
from harness.engine.work import BatchWork, Chunk
from harness.model_spec import ModelSpec
from harness.request import Prompt, Request
from harness.running.testbed import Bed

MIN_GAP = 1e-3  # of logits, whose standard deviation is about 1 in the random models
BLOCKS = 512


class Alone(NamedTuple):
    """What a plain engine generates for a prompt by itself."""

    tokens: list[int]
    gaps: list[float]  # of each token: by how much its logit is larger than the next one's

    def first(self, num_tokens: int) -> Alone:
        return Alone(self.tokens[:num_tokens], self.gaps[:num_tokens])


class Reference(Runner):
    """Runs one request, and remembers the gaps."""

    gaps: list[float]

    def picked(self, hidden: torch.Tensor, sampled: torch.Tensor | None) -> torch.Tensor:
        row = hidden[:1] if sampled is None else hidden[sampled]
        best = self._decoder.logits(row).topk(2)
        first, second = best.values[0].tolist()
        self.gaps.append(first - second)
        return best.indices[:, 0]


@cache
def _runner(model: ModelSpec) -> Reference:
    torch.set_num_threads(1)  # others are at work beside it
    device = torch.device("cpu")
    kernels = TorchKernels(model, device)
    layers = LoadedLayers(model, device, kernels.linear)
    kv = new_cache(model, BLOCKS, 16, device)
    decoder = TransformerDecoder(model, layers.ends, kernels)
    return Reference(model, decoder, layers.on_device, kv, device)


_ALONE: dict[tuple[ModelSpec, tuple[int, ...]], Alone] = {}  # many tests have the same prompts


def alone(model: ModelSpec, ids: Sequence[int], num_tokens: int) -> Alone:
    """Of the prompt `ids`, on one rank. It ends early with a token whose gap is no more than
    `MIN_GAP`."""
    model = replace(model, tp=1)
    key = (model, tuple(ids))
    if key not in _ALONE or len(_ALONE[key].tokens) < num_tokens:
        _ALONE[key] = _generated(model, list(ids), num_tokens)
    return _ALONE[key].first(num_tokens)


def _generated(model: ModelSpec, ids: list[int], num_tokens: int) -> Alone:
    runner = _runner(model)
    runner.gaps = []
    blocks = range(FIRST_BLOCK, FIRST_BLOCK + BLOCKS)
    prompt = BatchWork([Chunk(0, len(ids), True)], [], ids, [blocks])
    ((token,),) = runner.steps(prompt, 1)
    found = Alone([token], runner.gaps)
    if num_tokens > 1:
        decode = BatchWork([], [len(ids)], [token], [blocks])
        for (token,) in runner.steps(decode, num_tokens - 1):
            found.tokens.append(token)
            if found.gaps[-1] <= MIN_GAP:
                break
    return found


def plain_tokens(
    requests: Iterable[Request], models: Mapping[str, ModelSpec]
) -> dict[int, list[int]]:
    """What a plain engine generates for `requests`, one by one, in this process. Fails where a
    request's tokens are not clear: its prompt is no fixture for exact tokens."""
    found = {}
    for request in requests:
        model = models[request.model]
        ids = prompt_ids(request, model.vocab_size, 0)
        tokens, gaps = alone(model, ids, request.output_tokens)
        assert min(gaps) > MIN_GAP, (request, min(gaps))
        found[request.request_id] = tokens
    return found


@cache
def clear_prompt(number: int, model: ModelSpec, prompt_tokens: int, output_tokens: int) -> Prompt:
    """Request `number`'s first random prompt, by seeds 0, 1, …, whose tokens are clear."""
    request = Request(number, 0.0, model.name, prompt_tokens, output_tokens)
    for seed in count():
        ids = prompt_ids(request, model.vocab_size, seed)
        if min(alone(model, ids, output_tokens).gaps) > MIN_GAP:
            return Prompt.of("", ids, [0] * prompt_tokens)
    raise AssertionError


def make_clear(requests: Iterable[Request], models: Mapping[str, ModelSpec]) -> None:
    """Gives each a prompt whose tokens are clear."""
    for each in requests:
        model = models[each.model]
        each.prompt = clear_prompt(each.request_id, model, each.prompt_tokens, each.output_tokens)


class ClearBed(Bed):
    """A live bed whose prompts are clear."""

    def request(self, prompt_tokens: int, output_tokens: int) -> Request:
        request = Bed.request(self, prompt_tokens, output_tokens)
        make_clear([request], {self.model.name: self.model})
        return request


def expect(bed: Bed, lengths: Iterable[tuple[int, int]]) -> None:
    """Finds the prompts of the bed's next requests, of (prompt, output) tokens, which a live bed
    would look for while it serves others."""
    if isinstance(bed, ClearBed):
        for number, each in enumerate(lengths, bed.made):
            clear_prompt(number, bed.model, *each)


def answers(*requests: Request) -> dict[int, list[int]]:
    """The ids that a live engine gave for each, by request_id."""
    found = {}
    for request in requests:
        assert isinstance(request.answer, list), request
        found[request.request_id] = request.answer
    return found
