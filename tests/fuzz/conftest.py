"""How many inputs: a few of fixed seeds in `make test`, 10,000 in `make fuzz`.

Each test says its share of all; `make fuzz` sets FUZZ_INPUTS.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

INPUTS = int(os.environ.get("FUZZ_INPUTS", "150"))


def inputs(share: float) -> Callable[[Any], Any]:
    """`share` of all inputs. Where they are few, they are the same ones every time."""
    many = "FUZZ_INPUTS" in os.environ
    settled: Callable[[Any], Any] = settings(
        max_examples=max(1, round(INPUTS * share)),
        derandomize=not many,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    return settled
