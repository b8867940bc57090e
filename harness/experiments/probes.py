"""One run of a search for the value at which a condition ends, in whatever process it is made."""

from __future__ import annotations

import operator
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.configuration.ray_address import RAY_CLUSTER
from harness.errors import RunError, UsageError
from harness.records.run_folder import FinishedRun
from harness.running import interrupts
from harness.running.sweep_points import run_dir_word

OPERATORS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}


@dataclass(frozen=True, slots=True)
class Term:
    """One comparison of a summary's number, by dotted name."""

    metric: str
    sign: str
    bound: float

    def holds(self, value: float) -> bool:
        return bool(OPERATORS[self.sign](value, self.bound))


@dataclass(frozen=True, slots=True)
class Probe:
    """A run at `value`. `metrics` of the condition's terms, in their order; None: it was refused,
    for the reason that `refused` has."""

    value: float
    metrics: tuple[float, ...] | None
    holds: bool
    folder: Path
    refused: str = ""


def run_probe(
    terms: Sequence[Term], words: Sequence[str], folder: Path, cwd: Path, value: float, word: str
) -> Probe:
    """Runs `python -m harness` with `word`, which sets the key to `value`, unless that is complete
    in `folder`. `cwd`: where the command was given, for relative paths among `words`. Raises
    UsageError where the run's folder cannot be had, or a cluster's nodes, which says nothing of the
    value."""
    interrupts.check()
    run = folder / word.partition("=")[2]
    command = [sys.executable, "-m", "harness", *words, word, run_dir_word(run)]
    command.append("progress=false")
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode:
        said = done.stderr.rpartition("error: ")[2].strip()
        if done.returncode != 2:
            raise RunError(f"{word}: {said or f'exit status {done.returncode}'}")
        # A value that is refused leaves no folder, and what refuses it is no cluster.
        if (cwd / run).exists() or RAY_CLUSTER in said:
            raise UsageError(f"{word}: {said}")
        return Probe(value, None, False, run, said)
    finished = FinishedRun.load(run)
    if finished.invalid:
        raise RunError(f"{word} is INVALID: {finished.invalid}")
    metrics = tuple(finished.number(term.metric) for term in terms)
    holds = all(term.holds(m) for term, m in zip(terms, metrics, strict=True))
    return Probe(value, metrics, holds, run)
