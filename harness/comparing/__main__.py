"""Says whether systems differ: better, worse, or cannot tell.

Runs that differ in seed and repeat alone are one arm; the first arm is what others are compared
with. Arms are paired by seed, their repeats in the order given, and their runs by request, so both
must have served one schedule. Runs of unequal budgets (machine, devices, KV memory, versions, SLOs)
and INVALID runs are refused, unless --anyway.

The 95 % interval is a block bootstrap over requests, and Student's t over seeds and repeats where
that is wider, cut where B would be below 0 (-100 % of A as measured) or a share above 100 %.
--floor N RUN repeats a live run N times, and keeps in its folder how far repeats differ on this
machine: in 95 of 100 cases no metric is beyond it. An INVALID repeat is run again, twice at most;
if it stays so it is left out, and the exit status is 3. A live difference must exceed this floor
where there is one; a single pair of live runs cannot be judged without it. Nor is goodput/s or
tokens/s of a single pair of simulated runs, each of which has one duration. d is the effect: by how
many of its standard deviations the difference of a request is off 0 in the mean. A simulated
difference is a tie where the simulator's bands of both sides overlap; without parity points there
is no band, and the table says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.comparing import noise_floor
from harness.comparing.arms import Arm, arms, pairs, unequal
from harness.comparing.bands import NO_BAND, TIE, within_band
from harness.comparing.paired import RATE, Difference, differences, measured
from harness.configuration.command_line import ends_in_order, parser
from harness.errors import UsageError
from harness.files import write_json
from harness.records.numbers import number, seconds
from harness.records.run_folder import FinishedRun
from harness.records.run_table import captions, numbers_table
from harness.records.simulator_band import coverage, measured_on
from harness.records.slo import slo_of

STYLES = {"better": "green", "worse": "red", TIE: "yellow"}


def judge(
    found: Difference, floor: float | None, *, live: bool, num_pairs: int, old: bool = False
) -> Difference:
    """The floor is of two single runs; over several pairs it shrinks with their root. `old`: other
    code has one."""
    floor = floor / float(num_pairs**0.5) if floor is not None else None
    if floor is None and num_pairs == 1 and (live or found.metric.unit == RATE):
        no_floor = " (floor of other code)" if old else " (no floor)"
        why = no_floor if live else " (one seed)"
    elif found.low <= 0 <= found.high:
        why = ""
    elif floor is not None and abs(found.difference) <= floor:
        why = " (floor)"
    else:
        better = (found.difference > 0) == found.metric.higher_is_better
        return replace(found, floor=floor, verdict="better" if better else "worse")
    return replace(found, floor=floor, verdict=f"cannot tell{why}")


def compare(paired: Sequence[tuple[FinishedRun, FinishedRun]]) -> list[Difference]:
    """Every metric of the second runs against the first ones, under the first one's SLO."""
    slo = slo_of(paired[0][0].summary)
    first, second = zip(*paired, strict=True)
    runs = [*first, *second]
    floors = noise_floor.floor(runs) or {}
    old = noise_floor.of_other_code(runs)
    live = any(not run.manifest["simulated"] for run in runs)
    found = differences(*([measured(run, slo) for run in side] for side in (first, second)))
    judged = [
        judge(each, floors.get(each.metric.name), live=live, num_pairs=len(paired), old=old)
        for each in found
    ]
    return [within_band(each, first, second) for each in judged]


def table(reference: Arm, other: Arm, judged: Sequence[Difference], said: Sequence[str]) -> Table:
    """Metrics in rows; `said` is written below."""
    title = f"B against A\nA  {reference.label}\nB  {other.label}"
    caption = "\n".join(said)
    floors = any(each.floor is not None for each in judged)
    names = ("A", "B", "difference (95 %)", "d", *(["floor"] if floors else []), "verdict")
    made = numbers_table("metric", names, title=escape(title), caption=escape(caption))
    for each in judged:
        show, unit, of = _relative(each)
        ends = f"{_signed(each.low * of)} to {_signed(each.high * of)}"
        made.add_row(
            each.metric.name,
            show(each.value_of_reference),
            show(each.value_of_other),
            f"{_signed(each.difference * of)}{unit} ({ends})",
            "" if each.effect is None else f"{each.effect:+.2f}",
            *([f"{each.floor * of:.3g}{unit}" if each.floor is not None else ""] if floors else []),
            each.verdict,
            style=STYLES.get(each.verdict.removesuffix(NO_BAND)),
        )
    return made


def _signed(value: float) -> str:
    return f"{value:+,.0f}" if abs(value) >= 10 else f"{value:+.2g}"


def _relative(found: Difference) -> tuple[Callable[[float], str], str, float]:
    """How a value of the metric is shown, and the unit and the factor of its differences: shares
    in percentage points, others in percent of the reference."""
    if found.metric.unit == "share":
        return "{:.1%}".format, " pp", 100.0
    show = seconds if found.metric.unit == "s" else number
    of = found.value_of_reference
    return (show, " %", 100 / of) if of else (show, "", 1.0)


def _method(
    paired: Sequence[tuple[FinishedRun, FinishedRun]], num_runs: int, judged: Sequence[Difference]
) -> str:
    """How was compared. `num_runs`: of both arms."""
    named = ", ".join(dict.fromkeys(str(run.manifest["seeds"]["seed"]) for run, _ in paired))
    every = sum(run.requests.num_rows for run, _ in paired)
    ended = min((each.num_requests for each in judged), default=0)
    lack = f", of which {every - ended:,} lack a time in one run" if ended < every else ""
    count, alone = len(paired), num_runs - 2 * len(paired)
    floor = any(each.floor is not None for each in judged)
    floors = "; the floor is for all of them at once" if floor else ""
    return (
        f"{every:,} requests of seeds {named}, {count} pair{'s' * (count > 1)} of runs{lack}. "
        + (f"Runs without a partner, or as those of another pair: {alone}. " if alone else "")
        + f"Each metric is judged by itself{floors}. "
        "d: mean / standard deviation of the differences by request (Cohen's d of pairs)"
    )


def compared(paths: Sequence[Path], *, anyway: bool, out: Path | None) -> Iterator[Table]:
    """A table for each arm after the first; the rows of all in `out`, as JSON."""
    runs = [FinishedRun.load(path) for path in paths]
    unfair = unequal(runs)
    if unfair and not anyway:
        raise UsageError(f"{'; '.join(unfair)}: --anyway compares all the same")
    first, *others = arms(runs)
    if not others:
        raise UsageError(
            f"all {len(runs)} runs are of {first.label}, each with another seed: give runs of "
            "another system, or repeats"
            if len(runs) > 1
            else "one run has nothing to compare with: give another"
        )
    rows = []
    said = [*unfair, *captions([run.manifest for run in runs])]
    for other in others:
        paired = pairs(first, other)
        judged = compare(paired)
        if not judged:
            raise UsageError(f"{other.label} has served one request: a difference needs two")
        rows += [
            {"reference": first.label, "other": other.label, **asdict(each),
             "metric": each.metric.name, "unit": each.metric.unit}
            for each in judged
        ]  # fmt: skip
        method = _method(paired, len(first.runs + other.runs), judged)
        yield table(first, other, judged, [method, *said, *_of_bands(runs, judged)])
    if out is not None:
        write_json(out, rows)


def _of_bands(runs: Sequence[FinishedRun], judged: Sequence[Difference]) -> Iterator[str]:
    """Which metrics have no simulator's band, and how often bands hold for another workload."""
    names = ", ".join(each.metric.name for each in judged if each.bands is None)
    if names and any(run.manifest["simulated"] for run in runs):
        yield f"no parity points, so no simulator's band: {names}"
    found = [(*coverage(run.manifest, run.summary), measured_on(run.manifest)) for run in runs]
    for inside, points, machine in dict.fromkeys(found):
        if points:
            yield (
                f"simulator's band, by errors on {machine}: made of other workloads, it covers "
                f"{inside} of parity's {points} points ({inside / points:.0%})"
            )


@ends_in_order
def main(arguments: Sequence[str] | None = None) -> int:
    about = parser("compare", __doc__)
    about.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the folder of a run")
    help_floor = "repeat the one live RUN N times, and keep how far repeats differ"
    about.add_argument("--floor", type=int, metavar="N", help=help_floor)
    help_anyway = "compare although budgets differ or a run is INVALID; the table says so"
    about.add_argument("--anyway", action="store_true", help=help_anyway)
    about.add_argument("--out", type=Path, metavar="FILE", help="write the rows as JSON")
    chosen = about.parse_args(arguments)
    console = Console()
    if chosen.floor is not None:
        if len(chosen.runs) > 1:
            raise UsageError(f"--floor repeats one run, and {len(chosen.runs)} were given")
        run = FinishedRun.load(chosen.runs[0])
        print(noise_floor.measure(run, chosen.floor, lambda line: print(line, file=sys.stderr)))
        return 0
    for made in compared(chosen.runs, anyway=chosen.anyway, out=chosen.out):
        console.print(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
