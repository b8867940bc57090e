"""`python -m harness fidelity sessions --engine torch`: one schedule of sessions, served for real
on this machine and in simulation.

Profiles the engine (conf/hardware/local*.yaml), serves the sessions, and simulates them by that
profile. Compares the TTFT of first and of later turns, and for each request how many tokens of its
prompt the prefix cache had. Where hits are deterministic (no eviction, the same block size) they
must agree for each request: exit status 1 where they do not.

`python -m harness fidelity sessions RUN RUN … --out FILE` compares runs that are there, the first
one with the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from harness.configuration.command_line import parser
from harness.errors import RunError, UsageError
from harness.fidelity import session_runs
from harness.files import make_folder, write_json
from harness.records.manifest import git_revision, machine
from harness.records.numbers import seconds
from harness.records.run_folder import FinishedRun
from harness.records.run_table import numbers_table

TURNS = ("first", "later")
RUNS = Path("results/runs/fidelity/sessions")


def main(words: Sequence[str], console: Console) -> None:
    made = parser("fidelity sessions", __doc__)
    made.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="a run's folder")
    engine = "serve the sessions on it, instead of RUN"
    made.add_argument("--engine", choices=tuple(session_runs.LOADS), help=engine)
    before = "profile the engine before (yes)"
    either = argparse.BooleanOptionalAction
    made.add_argument("--calibrate", action=either, default=True, help=before)
    out = f"JSON file to write; default with --engine: {RUNS}/ENGINE.json"
    made.add_argument("--out", type=Path, metavar="FILE", help=out)
    made.add_argument("--note", default="", metavar="TEXT", help="what else was running, e.g.")
    chosen = made.parse_args(words)
    require_one_way(chosen)
    about: dict[str, Any] = {"note": chosen.note}
    git = git_revision()  # before calibration writes a profile
    runs = [FinishedRun.load(path) for path in chosen.runs]
    if chosen.engine:
        chosen.out = chosen.out or RUNS / f"{chosen.engine}.json"
        runs, known = session_runs.served(chosen.engine, RUNS, calibrate=chosen.calibrate)
        about["calibration"] = known
    found = about | compared(runs) | {"git": git}
    make_folder(chosen.out.parent)
    write_json(chosen.out, found)
    console.print(table(runs))
    if found["requests_with_other_hits"]:
        raise RunError(
            f"the prefix caches of {found['requests_with_other_hits']} of {found['num_requests']} "
            f"requests differ between the runs: {chosen.out}"
        )
    console.print(f"equal hits of all {found['num_requests']} requests: {chosen.out}")


def require_one_way(chosen: argparse.Namespace) -> None:
    if bool(chosen.engine) == bool(chosen.runs):
        raise UsageError("give --engine, or the folders of two runs or more")
    if chosen.runs and chosen.out is None:
        raise UsageError("--out FILE is missing: where the comparison of these runs goes")


def table(runs: Sequence[FinishedRun]) -> Table:
    """The mean TTFT of each run, with its difference from the first one's."""
    shown = numbers_table("run", ["requests", *(f"TTFT, {turns} turns" for turns in TURNS)])
    first = [_ttft_s(runs[0], turns) for turns in TURNS]
    for number, run in enumerate(runs):
        means = [_ttft_s(run, turns) for turns in TURNS]
        cells = [
            _cell(*each) for each in zip(means, first if number else (None, None), strict=True)
        ]
        kind = "simulated" if run.manifest["simulated"] else "real"
        count = f"{run.summary['num_requests']:,}"
        shown.add_row(f"{kind}: {run.path.name}", count, *cells)
    return shown


def _cell(mean_s: float | None, of_first_s: float | None) -> str:
    """A mean, and by how much it differs from the first run's where that is given."""
    error = f" ({mean_s / of_first_s - 1:+.0%})" if mean_s and of_first_s else ""
    return "none" if mean_s is None else f"{seconds(mean_s)}{error}"


def _ttft_s(run: FinishedRun, turns: str) -> float | None:
    """The mean; None: there was no such turn."""
    found: float | None = run.summary["sessions"][turns]["ttft_s"]["mean"]
    return found


def compared(runs: Sequence[FinishedRun]) -> dict[str, Any]:
    """UsageError for runs that are not of one schedule of sessions."""
    for run in runs:
        if "sessions" not in run.summary:
            raise UsageError(f"{run.path} is no run of sessions")
    schedules = {run.manifest["schedule_sha256"] for run in runs}
    if len(schedules) > 1:
        raise UsageError(f"{len(schedules)} different schedules: the runs must replay one")
    if len(runs) < 2:
        raise UsageError("one run has nothing to agree with: give two or more")
    hits = [_hits(run) for run in runs]
    for run, found in zip(runs, hits, strict=True):
        if set(found.values()) == {None}:
            raise UsageError(f"{run.path} does not say what a prefix cache had of its prompts")
    differ = sum(len({each[request] for each in hits}) > 1 for request in hits[0])
    return {
        "machine": machine(),
        "git": git_revision(),
        "schedule_sha256": schedules.pop(),
        "num_requests": len(hits[0]),
        "requests_with_other_hits": differ,
        "runs": [_row(run) for run in runs],
    }


def _hits(run: FinishedRun) -> Mapping[int, int | None]:
    """The tokens of each request's prompt that a prefix cache had."""
    columns = (run.requests[name].to_pylist() for name in ("request_id", "cached_tokens"))
    return dict(zip(*columns, strict=True))


def _row(run: FinishedRun) -> dict[str, Any]:
    sessions = run.summary["sessions"]
    return {
        "engine": run.manifest["engine_name"],
        "simulated": run.manifest["simulated"],
        "overrides": [each for each in run.manifest["overrides"] if "runs_dir=" not in each],
        "verdict": run.summary["verdict"],
        "num_sessions": sessions["num_sessions"],
        **{turns: sessions[turns] for turns in TURNS},
    }
