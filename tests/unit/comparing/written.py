"""Runs to compare, written as a run writes them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.comparing.__main__ import main
from harness.records.run_folder import FinishedRun
from tests.unit.metrics.service import Service, write_run

REQUESTS = 80


def service(delay_s: float, seed: int = 0, noise_s: float = 0.02) -> Service:
    """Requests of two tokens. The first comes after `delay_s` and some noise, the second 0.05 s
    later."""
    rng = np.random.default_rng(seed)
    made = Service(*((float(i), 2) for i in range(REQUESTS)))
    for i, extra_s in enumerate(rng.uniform(0, noise_s, REQUESTS)):
        first_s = i + delay_s + float(extra_s)
        made.complete(i, first_s, first_s + 0.05)
    return made


def run(
    path: Path,
    delay_s: float,
    *,
    system: str = "a",
    seed: int = 0,
    engine: str = "sim",
    engine_: dict[str, Any] | None = None,
    **said: Any,
) -> Path:
    """A run's folder. `said` goes into its manifest, and `engine_` as what its engine says."""
    write_run(path, service(delay_s, seed), engine_name=engine)
    file = path / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest |= {"overrides": [f"+system={system}", f"seed={seed}"], "seeds": {"seed": seed}} | said
    manifest["engine"] |= engine_ or {}
    file.write_text(json.dumps(manifest))
    return path


def names(paired: Sequence[tuple[FinishedRun, FinishedRun]]) -> list[str]:
    return [f"{first.path.name} {second.path.name}" for first, second in paired]


def verdicts(capsys: pytest.CaptureFixture[str], *words: Path | str) -> dict[str, str]:
    """{metric: verdict}, as --out has them."""
    out = Path(str(words[0])).parent / "rows.json"
    assert main([*map(str, words), "--out", str(out)]) == 0, capsys.readouterr().err
    return {row["metric"]: row["verdict"] for row in json.loads(out.read_text())}
