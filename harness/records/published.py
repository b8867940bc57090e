"""The simulator's error as last measured and committed: it travels with every simulated run.

A report holds for the device that it was measured on and for iteration times from the source that
its runs had. Any other device or source is said not to have been measured.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any

NOT_MEASURED_ELASTIC = "simulator error: not measured where weights and KV move between instances"
PARITY = Path(__file__).resolve().parents[2] / "results/published/fidelity"


def simulator_error(device: str, profile: str, sources: Collection[str]) -> str:
    """One line for runs on `device`, as the hardware profile called `profile` has it, with
    iteration times from `sources` ("measured", "device law", "datasheet")."""
    of_device = [report for report in _reports() if report["device"] == device]
    # One device may have a profile for each engine that was calibrated on it.
    own = [report for report in of_device if report["setting"]["profile"] == profile]
    for report in [*own, *of_device]:
        if set(sources) == {report["basis"]}:
            headline: str = report["headline"]
            return headline
    by = f" with iteration times by {' and '.join(sorted(sources))}" if sources else ""
    return f"simulator error: not measured for {device}{by}"


@cache
def _reports() -> tuple[dict[str, Any], ...]:
    """Those that are committed: engine=torch's first."""
    return tuple(_read())


def _read() -> Iterator[dict[str, Any]]:
    for path in (PARITY / "parity.json", PARITY / "vllm" / "parity.json"):
        if path.is_file():
            yield json.loads(path.read_text())
