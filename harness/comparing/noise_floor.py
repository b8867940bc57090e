"""How far repeats of one live run differ on this machine (A/A): no difference below it counts.

A simulated run repeats exactly and has no floor.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np

from harness.comparing.arms import key
from harness.comparing.conditions import machine
from harness.comparing.paired import METRICS, measured
from harness.errors import InvalidRun, RunError, UsageError
from harness.files import read_json, write_json
from harness.records.interval import CONFIDENCE, students
from harness.records.run_folder import NOISE_FLOOR, FinishedRun
from harness.records.slo import slo_of
from harness.records.sources import changed, why_again
from harness.running.sweep_points import run_dir_word

LEAST = 3  # repeats
TRIES = 3  # of a repeat that is INVALID
OF = ("served_hash", "sources", "machine")  # what a floor is of: with another value there is none
OF_THE_SLO = {metric.name for metric in METRICS if metric.of_the_slo}
SHOWN = {
    "tracking": "none", "progress": "false", "figure": "null", "again": "true", "strict": "false",
}  # fmt: skip


def measure(run: FinishedRun, times: int, announce: Callable[[str], None]) -> Path:
    """Repeats a live run and writes the floor into its folder; the repeats lie beside it. One that
    is INVALID is run again, and left out if it stays so; the floor is of the others.

    Raises UsageError for a simulated run, for fewer than three repeats and if the command or
    the code gives another run today; RunError if a repeat fails. InvalidRun if one stays INVALID,
    after the floor has been written where three repeats are VALID.
    """
    if run.manifest["simulated"]:
        raise UsageError(f"{run.path} is simulated: it repeats exactly, and has no noise")
    if times < LEAST:
        raise UsageError(f"--floor={times} is too few repeats: at least {LEAST}")
    repeats, why = [], dict[str, list[str]]()  # of each try that was INVALID, by the folder
    left_out: list[str] = []
    for number in range(1, times + 1):
        folder = run.path.with_name(f"{run.path.name}-repeats") / str(number)
        for attempt in range(1, TRIES + 1):
            again = f", try {attempt} of {TRIES}" if attempt > 1 else ""
            announce(f"repeat {number} of {times}{again}: {folder}")
            made = _repeat(run, folder)
            if not made.invalid:
                repeats.append(made)
                break
            announce(f"repeat {number} is INVALID: {made.invalid}")
            why.setdefault(str(folder), []).append(made.invalid)
        else:
            left_out.append(str(folder))
            if times - len(left_out) < LEAST:  # whatever the others are
                break
    if enough := len(repeats) >= LEAST:
        _write(run, repeats, why, announce)
    if left_out:
        first, *more = left_out
        told = "".join(f"; so is {path}: {why[path][-1]}" for path in more)
        found = "the floor is of" if enough else "too few for a floor, and kept:"
        reasons = (
            f"{why[first][-1]}, the last of {TRIES} times{told}; {found} {len(repeats)} others"
        )
        raise InvalidRun(Path(first), reasons)
    return run.path / NOISE_FLOOR


def _write(
    run: FinishedRun,
    repeats: Sequence[FinishedRun],
    invalid: Mapping[str, Sequence[str]],
    announce: Callable[[str], None],
) -> None:
    """noise_floor.json, with why repeats were INVALID, also those that were VALID in the end. The
    run itself is one more of them, unless it is INVALID or of another machine."""
    alike = not run.invalid and run.manifest.get("machine") == repeats[0].manifest.get("machine")
    every_run = [*([run] if alike else []), *repeats]
    measures = [measured(each, slo_of(each.summary)) for each in every_run]
    every = {metric.name: [metric.value(run) for run in measures] for metric in METRICS}
    # none of what no request has, such as the TPOT of answers of one token
    values = {name: of_name for name, of_name in every.items() if np.isfinite(of_name).all()}
    made = {
        **{name: repeats[0].manifest.get(name) for name in (*OF, "config_hash")},
        "repeats": [str(each.path) for each in repeats],
        "invalid": invalid,
        "values": values,
        "difference": {name: _reach(of_name) for name, of_name in values.items()},
        "drift": (drift := drifting(values)),
    }
    if drift:
        announce(drift)
    write_json(run.path / NOISE_FLOOR, made)


def floor(runs: Sequence[FinishedRun]) -> dict[str, float] | None:
    """{metric: by how much two repeats differ at most, by `_reach`}, the largest of the
    floors that were measured of `runs` as they are now, on the one machine that they ran on; None:
    of none of them, or they ran on several. A floor that was measured under another SLO has none of
    the metrics that the SLO judges."""
    if len({machine(run.manifest) for run in runs} - {None}) > 1:
        return None
    found: dict[str, float] = {}
    for made, now in _measured(runs):
        if all(made.get(name) == now.get(name) for name in OF):
            other_slo = made.get("config_hash") != now["config_hash"]
            for name, reach in made["difference"].items():
                if not (other_slo and name in OF_THE_SLO):
                    found[name] = max(reach, found.get(name, 0.0))
    return found or None


def of_other_code(runs: Sequence[FinishedRun]) -> bool:
    """Whether a floor of one of `runs` would count, had the code not changed since."""
    return any(
        made.get("sources") != now.get("sources")
        and all(made.get(name) == now.get(name) for name in OF if name != "sources")
        for made, now in _measured(runs)
    )


def drifting(values: Mapping[str, Sequence[float]]) -> str:
    """What is to be said where each repeat of a floor was above, or below, the one before."""
    found = [
        f"`{name}`"
        for name, repeats in values.items()
        if len(repeats) > 3 and set(np.sign(np.diff(repeats))) in ({1.0}, {-1.0})
    ]
    told = f"Its repeats rose or fell one after another in {', '.join(found)}, which chance seldom "
    return f"{told}does: the floor is probably too wide." if found else ""


def _measured(runs: Sequence[FinishedRun]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The floors of each run, and the run's manifest. A run that was scored anew has that of the
    run it was scored from, too."""
    for run in runs:
        folders = [run.path]
        if (name := run.manifest.get("scored_from")) is not None:
            folders.append(run.path.with_name(name))
        for folder in folders:
            if (path := folder / NOISE_FLOOR).is_file():
                yield read_json(path), run.manifest


def _repeat(run: FinishedRun, folder: Path) -> FinishedRun:
    kept = [o for o in run.manifest["overrides"] if key(o) not in ("hydra", *SHOWN)]
    words = [*kept, *(f"{name}={value}" for name, value in SHOWN.items())]
    command = [sys.executable, "-m", "harness", *words, run_dir_word(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RunError(f"a repeat failed: {(ended.stderr.splitlines() or [''])[-1]}")
    found = FinishedRun.load(folder)
    if found.manifest["config_hash"] != run.manifest["config_hash"]:
        raise UsageError(
            f"{run.path}: its command gives another run now ({found.manifest['config_hash']}, not "
            f"{run.manifest['config_hash']}); run it again first"
        )
    if found.manifest.get("sources") != (sources := run.manifest.get("sources")):
        told = [why_again(sources)] if sources is None or changed(sources) else []
        if new := sorted({*(found.manifest.get("sources") or ())} - {*(sources or ())}):
            told.append(f"new since: {', '.join(new)}")
        raise UsageError(f"{run.path}: run it again first: {'; '.join(told)}")
    return found


def _reach(values: Sequence[float]) -> float:
    """By how much two more values differ at most: so wide that of the differences of all METRICS
    none is wider in 95 of 100 cases, whatever they have to do with each other (Bonferroni)."""
    wrong = (1 - CONFIDENCE) / len(METRICS)
    return students(len(values) - 1, 1 - wrong) * stdev(values) * 2**0.5
