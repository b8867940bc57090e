"""Prompt token ids: the request's own, or random; the same in every engine and every run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.request import Request

FIRST_ID = 10  # ids below are special tokens in the tokenizers we meet


def prompt_ids(request: Request, vocab_size: int, seed: int) -> list[int]:
    """`request.prompt_tokens` ids: those of its real prompt, or random ones in
    [FIRST_ID, vocab_size), a function of seed and request_id."""
    ids: list[int]
    if request.prompt is not None:
        ids = request.prompt.ids.tolist()
        return ids
    rng = np.random.default_rng((seed, request.request_id))
    ids = rng.integers(FIRST_ID, vocab_size, request.prompt_tokens).tolist()
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
