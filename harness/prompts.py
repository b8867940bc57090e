"""Prompt token ids: random, but the same for a request in every engine and every run."""

from __future__ import annotations

import numpy as np

from harness.request import Request

FIRST_ID = 10  # ids below are special tokens in the tokenizers we meet


def prompt_ids(request: Request, vocab_size: int, seed: int) -> list[int]:
    """`request.prompt_tokens` ids in [FIRST_ID, vocab_size), a function of seed and request_id."""
    rng = np.random.default_rng((seed, request.request_id))
    ids: list[int] = rng.integers(FIRST_ID, vocab_size, request.prompt_tokens).tolist()
    return ids
