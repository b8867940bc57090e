"""The speed of this machine at each point, against that at calibration: it drifts.

Probes, short servings of synthetic lengths, lie between the points. A point is simulated at the
speed that the probes on either side of it found, and once more as calibrated, so that both errors
are known. What was found is kept beside the point's runs, for reports that simulate anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import sqrt
from pathlib import Path
from typing import Any

from harness.files import write_text

FILE = "slowness.json"


class Drift:
    """`probe()` gives the seconds that work takes now over those of the profile."""

    def __init__(self, probe: Callable[[], float]) -> None:
        self._probe = probe
        self._before = probe()

    def over(self, serve: Callable[[], Any], run_dir: Path) -> tuple[Any, float]:
        """What `serve()` returns, and how slow the machine was meanwhile."""
        served = serve()
        after = self._probe()
        slowness = sqrt(self._before * after)
        about = {"before": self._before, "after": after, "slowness": slowness}
        write_text(run_dir / FILE, json.dumps(about) + "\n")
        self._before = after
        return served, slowness


class NoDrift:
    """Nothing is probed: the speed is that of calibration, or of a run that was kept what its
    probes had found."""

    def __init__(self, keep: bool) -> None:
        self._keep = keep

    def over(self, serve: Callable[[], Any], run_dir: Path) -> tuple[Any, float]:
        kept = run_dir / FILE
        served = serve()
        if not (self._keep and kept.is_file()):
            return served, 1.0
        return served, float(json.loads(kept.read_text())["slowness"])
