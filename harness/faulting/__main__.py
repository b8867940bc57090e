"""`python -m harness faults`: what each system does when an instance dies or stalls.

Runs the cases of conf/faults.yaml, live on this machine and simulated: each system on one schedule,
undisturbed and with each fault. Live runs go one after another; complete ones are not repeated.
Writes faults.csv, faults.json and faults.md; the live rows of the whole table go to live.csv,
live.json and live.md. docs/faults.md tells how to read them.

Exit status: 0 done, 1 a run broke by itself (the table lacks it), 2 a wrong command,
130 interrupted; what was run by then is kept, and the same command goes on from there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from harness.calibrate.tables import markdown_rows
from harness.configuration.command_line import ends_in_order, parser
from harness.errors import RunError, first_line
from harness.faulting.cases import (
    FAULTED_RUNS,
    UNDISTURBED,
    Case,
    Made,
    cases,
    read_cases,
    run_case,
)
from harness.faulting.outcome import harm
from harness.files import make_folder, write_json, write_text, writing
from harness.records.manifest import git_revision, machine
from harness.running.interrupts import check, listen

PUBLISHED = Path("results/published/faults")
COLUMNS = {  # of faults.csv: what faults.md calls them
    "system": "system", "engine": "engine", "fault": "fault", "struck": "struck",
    "requests": "requests", "hurt": "under way", "lost": "lost", "wrong": "wrong tokens",
    "recover_s": "seconds to recover", "attainment": "attainment",
    "attainment_undisturbed": "undisturbed", "verdict": "verdict", "ended": "what ended the run",
}  # fmt: skip


def rows(
    chosen: Sequence[Case], *, again: bool, console: Console
) -> Iterator[dict[str, Any] | None]:
    """One for each case with a fault, as its run ends. None: the run, or the undisturbed one, which
    comes first, broke by itself."""
    reference: Made | None = None
    for case in chosen:
        check()
        about = f"{case.system} {case.engine} {case.fault}, seed {case.seed}"
        made: Made | None = None
        try:
            made = run_case(case, again=again)
        except RunError as error:
            console.print(f"{about}: {first_line(error)}", soft_wrap=True)
        if case.fault == UNDISTURBED:
            reference = made
            continue
        if made is None or reference is None:
            yield None
            continue
        row = compared(case, made, reference)
        told = row["ended"] or f"{row['lost']} lost, recovered after {row['recover_s']} s"
        console.print(f"{about}: {told}", soft_wrap=True)
        yield row


def compared(case: Case, made: Made, reference: Made) -> dict[str, Any]:
    """RunError where the two runs did not replay one schedule."""
    if made.manifest["schedule_sha256"] != reference.manifest["schedule_sha256"]:
        raise RunError(f"{made.path} and {reference.path} replayed different schedules")
    strike_s = min((fault["start_s"] for fault in made.faults), default=0.0)
    found = harm(
        made.requests,
        reference.requests,
        strike_s,
        made.tokens,
        reference.tokens,
        read_cases()["late"],
    )
    verdict = made.summary["verdict"] if made.summary else {"status": "ended", "reasons": []}
    return {
        "system": case.system, "engine": case.engine, "fault": case.fault, "seed": case.seed,
        "struck": bool(made.faults) and all(fault["struck"] for fault in made.faults),
        "requests": len(made.requests), **asdict(found),
        "recover_s": None if made.ended else rounded(found.recover_s),
        "attainment": attainment(made), "attainment_undisturbed": attainment(reference),
        "verdict": verdict["status"], "reasons": verdict["reasons"],
        "undisturbed_verdict": reference.summary["verdict"]["status"],
        "ended": first_line(RuntimeError(made.ended)) if made.ended else "",
        "config_hash": made.manifest["config_hash"], "faults": made.faults,
    }  # fmt: skip


def attainment(made: Made) -> float | None:
    return rounded(made.summary["slo_attainment"]["request"]) if made.summary else None


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def markdown(found: Sequence[dict[str, Any]], facts: dict[str, Any]) -> str:
    lines = [
        "# What a fault does to each system", "",
        f"Written by `python -m harness faults` on {facts['machine']['num_cores']} cores of "
        f"{facts['machine']['cpu']}. Simulated: the mean over seeds, with the least and the "
        "greatest. [How to read it](../../../docs/faults.md).", "",
    ]  # fmt: skip
    for title, engines in (("Live", ("torch", "vllm")), ("SIMULATED", ("sim",))):
        here = [row for row in found if row["engine"] in engines]
        if here:
            of_case: dict[tuple[str, ...], list[dict[str, Any]]] = {}
            for row in here:
                of_case.setdefault((row["system"], row["engine"], row["fault"]), []).append(row)
            cells = ([over(seeds, key) for key in COLUMNS] for seeds in of_case.values())
            lines += [f"## {title}", "", *markdown_rows(COLUMNS.values(), cells), ""]
    return "\n".join(lines)


def over(seeds: Sequence[dict[str, Any]], key: str) -> str:
    """The mean over a case's seeds with the least and the greatest; what all have in common."""
    values = [row[key] for row in seeds]
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    if len(set(map(str, values))) == 1 or not numbers:
        return ", ".join(dict.fromkeys(shown(row, key) for row in seeds))
    return f"{sum(values) / len(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def shown(row: dict[str, Any], key: str) -> str:
    value = row[key]
    if key == "wrong" and value is not None:
        return f"{value} of {row['compared']}"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return "—" if value is None else str(value)


def by_file(found: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The rows of the whole table by the name of their files; no name without rows."""
    named: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        named.setdefault("faults" if row["engine"] == "sim" else "live", []).append(row)
    return named


def write(folder: Path, name: str, found: Sequence[dict[str, Any]]) -> Path:
    facts = {"machine": machine(), "git": git_revision()}
    table = pd.DataFrame(found, columns=["seed", *COLUMNS, "config_hash"], dtype=object)
    page = folder / f"{name}.md"
    with writing(folder):
        write_text(folder / f"{name}.csv", table.to_csv(index=False))
        write_json(folder / f"{name}.json", facts | {"rows": list(found)})
        write_text(page, markdown(found, facts))
    return page


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    made = parser("faults", __doc__)
    add = made.add_argument
    add("--only", nargs="+", default=[], metavar="SYSTEM", help="these systems alone")
    add("--engines", nargs="+", default=[], metavar="ENGINE", help="torch, vllm or sim alone")
    add("--again", action="store_true", help="repeat complete runs too")
    out = f"default: {PUBLISHED} for the whole table, beside the runs for a part of it"
    add("--out", type=Path, metavar="DIR", help=out)
    return made.parse_args(words)


@ends_in_order
def main(words: Sequence[str] | None = None) -> int:
    given = arguments(words)
    chosen = cases(given.only, given.engines)
    part = bool(given.only or given.engines)
    out: Path = given.out or (FAULTED_RUNS if part else PUBLISHED)
    make_folder(out)
    listen()
    every = list(rows(chosen, again=given.again, console=Console(stderr=True)))
    found = [row for row in every if row is not None]
    for name, of_file in ({"faults": found} if part else by_file(found)).items():
        print(write(out, name, of_file))
    return int(None in every)


if __name__ == "__main__":
    sys.exit(main())
