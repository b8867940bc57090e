"""The terms of `harness.cost.model`'s law, of one iteration or of arrays of them.

Stays Python where the rest is compiled: mypyc knows no function of floats and arrays alike.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from harness.cost.hardware import StepCoefficients

WIDE_BATCH = 128  # decodes above this take one more tile of rows in every product

Number = TypeVar("Number", float, npt.NDArray[np.float64])


def work_s(c: StepCoefficients, tokens: Number, launch: float = 1.0) -> Number:
    """The layers on `tokens`, attention aside. `launch`: the share of c.launch_s that is paid.

    The three terms add like the legs of a right triangle, which overlapping work was found to do.
    """
    floor = (launch * c.launch_s) ** 2 + c.weights_s**2
    total: Number = (floor + (c.token_s * tokens) ** 2) ** 0.5
    return total


def prefill_s(c: StepCoefficients, tokens: Number, pairs: Number, chunks: Number) -> Number:
    """An iteration that is all prompts, with `pairs` of a query and a key it attends to."""
    return c.prefill_s + work_s(c, tokens) + c.attend_s * pairs + c.chunk_s * chunks


def decode_s(c: StepCoefficients, requests: Number, context_tokens: Number) -> Number:
    """An iteration that is all decodes."""
    return contextless_s(c, requests, 1.0) + c.context_s * context_tokens


def contextless_s(c: StepCoefficients, requests: Number, launch: float) -> Number:
    step = c.decode_s + work_s(c, requests, launch) + c.request_s * requests
    return step + c.wide_s * (requests > WIDE_BATCH)


def mixed_s(
    c: StepCoefficients,
    tokens: Number,
    pairs: Number,
    chunks: Number,
    decodes: Number,
    context_tokens: Number,
) -> Number:
    """An iteration of prompts and decodes; `context_tokens` of both."""
    step = prefill_s(c, tokens, pairs, chunks) + c.context_s * context_tokens
    step = step + c.request_s * decodes + c.wide_s * (decodes > WIDE_BATCH)
    return step + max(c.decode_s - c.prefill_s, 0.0) * (decodes > 0)
