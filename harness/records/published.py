"""The simulator's error as last measured and committed: it travels with every simulated run."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

PARITY = Path(__file__).resolve().parents[2] / "results/published/fidelity/parity.json"


@cache
def published_error() -> str:
    """One line from the committed parity report; says so where there is none."""
    if not PARITY.is_file():
        return "simulator error: not measured (python -m harness.fidelity)"
    headline: str = json.loads(PARITY.read_text())["headline"]
    return headline
