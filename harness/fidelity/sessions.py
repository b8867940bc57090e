"""`python -m harness fidelity sessions RUN RUN … --out FILE`: one schedule of sessions, served for
real and in simulation.

Writes TTFT of first and later turns, and what the prefix caches had of each prompt. Where hits are
deterministic (no eviction, the same block size) they must agree for each request: exit status 1
where they do not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.configuration.command_line import parser
from harness.errors import RunError, UsageError
from harness.files import write_text
from harness.records.manifest import git_revision, machine
from harness.records.run_folder import FinishedRun

TURNS = ("first", "later")


def main(words: Sequence[str], console: Console) -> None:
    made = parser("fidelity sessions", __doc__)
    made.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    made.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON file to write")
    made.add_argument("--note", default="", metavar="TEXT", help="what else was running, e.g.")
    chosen = made.parse_args(words)
    found = compared([FinishedRun.load(path) for path in chosen.runs])
    write_text(chosen.out, json.dumps({"note": chosen.note} | found, indent=1) + "\n")
    if found["requests_with_other_hits"]:
        raise RunError(
            f"the prefix caches of {found['requests_with_other_hits']} of {found['num_requests']} "
            f"requests differ between the runs: {chosen.out}"
        )
    console.print(f"equal hits of all {found['num_requests']} requests: {chosen.out}")


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
