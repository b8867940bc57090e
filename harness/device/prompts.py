"""Prompt token ids: the request's own, or random; the same in every engine and every run. Random
prompts begin alike where the schedule says that they share something (`Request.shared`). Those of a
session's later turns begin with all that was said before, the answers as engines gave them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from harness.errors import RunError, UsageError
from harness.model_spec import ModelSpec
from harness.request import Request

SHARED = 1  # sets the streams that prompts share apart from the requests' own
FIRST_ID = 10  # ids below are special tokens in the tokenizers we meet


def prompt_ids(request: Request, vocab_size: int, seed: int) -> list[int]:
    """`request.prompt_tokens` ids: those of its real prompt, or random ones in
    [FIRST_ID, vocab_size), a function of seed and request_id, of the streams that it shares, and of
    what was answered before in its session. Raises RunError where that is not known as ids."""
    turns = [request]
    while (previous := previous_turn(turns[-1])) is not None:
        turns.append(previous)
    ids: list[int] = []
    for before in reversed(turns[1:]):
        ids += said(before, vocab_size, seed) + answer_ids(before)
    return ids + said(request, vocab_size, seed)


def answer_ids(request: Request) -> list[int]:
    """What `request` was answered. Raises RunError where that is not known as ids."""
    if not isinstance(request.answer, list):
        raise RunError(
            f"request {request.request_id} was answered without token ids, which the next "
            "turn of its session begins with: choose engine.api=chat, or a server that "
            "takes return_token_ids, as vLLM does"
        )
    return request.answer


def previous_turn(request: Request) -> Request | None:
    """The turn before `request` in its session; None: it is the first, or of no session."""
    return None if request.turn is None else request.turn.previous


def said(request: Request, vocab_size: int, seed: int) -> list[int]:
    """The ids of the prompt behind what was said before in its session, if it is of one."""
    if request.turn is not None and request.turn.previous is not None:
        return _drawn((seed, request.request_id), vocab_size, request.turn.new_tokens)
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
