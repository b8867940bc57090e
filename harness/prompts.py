"""Prompt token ids: the request's own, or random; the same in every engine and every run. Random
prompts begin alike where the schedule says that they share something (`Request.shared`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.request import Request

SHARED = 1  # sets the streams that prompts share apart from the requests' own
FIRST_ID = 10  # ids below are special tokens in the tokenizers we meet


def prompt_ids(request: Request, vocab_size: int, seed: int) -> list[int]:
    """`request.prompt_tokens` ids: those of its real prompt, or random ones in
    [FIRST_ID, vocab_size), a function of seed and request_id, and of the streams that it shares."""
    ids: list[int] = []
    if request.prompt is not None:
        ids = request.prompt.ids.tolist()
        return ids
    for stream, tokens in request.shared or ():
        tokens = min(tokens, request.prompt_tokens - len(ids))
        ids += _drawn((seed, stream, SHARED), vocab_size, tokens)
    return ids + _drawn((seed, request.request_id), vocab_size, request.prompt_tokens - len(ids))


def _drawn(entropy: tuple[int, ...], vocab_size: int, num_tokens: int) -> list[int]:
    rng = np.random.default_rng(entropy)
    ids: list[int] = rng.integers(FIRST_ID, vocab_size, num_tokens).tolist()
    return ids


def require_in_vocabulary(requests: Iterable[Request], models: Mapping[str, ModelSpec]) -> None:
    """Raises UsageError where a real prompt was tokenised for another model than its own."""
    for request in requests:
        vocab_size = models[request.model].vocab_size
        if request.prompt is not None and request.prompt.ids.max() >= vocab_size:
            raise UsageError(
                f"request {request.request_id} has token id {request.prompt.ids.max()}, but model "
                f"{models[request.model].name} has {vocab_size} ids: tokenise the prompts with "
                "that model's tokenizer (workload.text.tokenizer)"
            )
