"""Makes figures and claims again, beside the committed ones, and says whether they are the same.

    python -m harness reproduce                         the four papers
    python -m harness reproduce kunserve                all figures and claims of a paper
    python -m harness reproduce 'aqua_fig0*'            figures
    python -m harness reproduce kunserve/abstract-tail  one claim, by its id in results/claims

--tier smoke  one live run of this machine, one simulated figure, and its claims: a few minutes
--tier quick  the simulated runs of each sweep's first seed. Of a paper, the figures that claims
              rest on, some of them on coarser grids. Rows that rest on no other seed are held
              against the committed ones. One seed judges no claim: each claim's value is held
              against the committed table's with the same seed. A value that rests on several
              seeds, as one over an SLO that is taken of all of them, may vary as much as the
              committed seeds do
--tier full   all runs. All claims are judged, and whole tables held against the committed ones

--world torch makes the live versions alone, which are the figures with runs on our engine: all
their runs, and judges their claims. --world vllm makes that of aqua_fig01 on vLLM's engine: four
runs, which are no figure. --hardware NAME does either on a profile of conf/hardware.

It says beforehand how many runs that are, how long they take, and how much disk, by the last times
on this machine (results/runs/times.json). Tables, pictures and report.md go to the folder of the
tier, or of the hardware, in results/reproduced; nothing in results/published changes. report.md
keeps what earlier commands made. Complete runs are not repeated, so that an interrupted or killed
command goes on where it was. A figure that fails does not stop the others. Where a live run is
INVALID, the figure is made once more; then it fails.

The verdict at the end: each figure and claim is the same, within the allowed variation, or
different, with the cause where the runs tell it. Tables of live runs and of measured times differ
each time; their claims say whether that matters. Claims of a figure that failed are not judged.

Exit status: 0 nothing differs; 1 something differs or failed; 2 a wrong command.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import disk_usage
from textwrap import fill

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from harness.configuration.command_line import ends_in_order, parser
from harness.configuration.options import available
from harness.errors import RunError, UsageError, first_line, told
from harness.experiments.batch import Making
from harness.experiments.compose import CONF, ROOT, sweep
from harness.experiments.figures import drawn, has_live_runs, make_runs
from harness.experiments.launched import add_launcher, launcher_words
from harness.files import make_folder
from harness.records.manifest import git_revision
from harness.records.run_folder import RUN_BYTES
from harness.reproduce import holding, report
from harness.reproduce.asked import (
    SMOKE_RUN,
    TIERS,
    WORLDS,
    asked,
    check_hardware,
    check_runs,
    live_versions,
    live_words,
    on_vllm,
)  # fmt: skip
from harness.reproduce.holding import DIFFERING, FAILED, UNTOLD, Row
from harness.reproduce.live_runs import RUN_S, live_run, run_name
from harness.reproduce.times import expected, last_times, note
from harness.running import interrupts
from harness.running.prepare import announce

REPRODUCED = ROOT / "results/reproduced"


def kept_going(what: str, name: str, make: Callable[[], Row]) -> Row:
    """`make()`, or how it failed: whatever it is, the others are made."""
    try:
        return make()
    except (RunError, UsageError) as error:
        return Row(what, name, FAILED, str(error))
    except Exception as error:
        return Row(what, name, FAILED, told(f"{type(error).__name__}: {first_line(error)}"))


def made_again(
    names: Sequence[str], making: Making, tier: str, out: Path,
    live_of: Mapping[str, Sequence[str]] = {},
) -> Iterator[Row]:  # fmt: skip
    """Makes each figure in `out`, and says how its table compares: the simulated ones in the order
    in which their runs come, then each live one by itself. `live_of`: overrides of a figure's runs
    on a real engine."""
    live = [name for name in names if has_live_runs(name)]
    together = [[name for name in names if name not in live], *([name] for name in live)]
    for group in filter(None, together):
        yield from _made(group, replace(making, live=live_of.get(group[0], ())), tier, out)


def _made(names: Sequence[str], making: Making, tier: str, out: Path) -> Iterator[Row]:
    """Each figure is drawn while runs of others are made. What ends them all, as a process that was
    killed, is tried again figure by figure."""
    left = [*names]
    try:
        with closing(make_runs(names, making, out, tier)) as figures:
            for name, error in figures:
                left.remove(name)
                row = kept_going("figure", name, partial(_held, name, error, making, tier, out))
                announce(f"[{len(names) - len(left)}/{len(names)}] {name}: {row.outcome}")
                yield row
    except Exception as error:
        if len(names) > 1:
            announce(f"the other figures one by one: {first_line(error)}")
        for name in left:
            if len(names) > 1:
                yield from _made([name], making, tier, out)
            else:
                yield kept_going("figure", name, partial(_held, name, error, making, tier, out))


def _held(name: str, error: Exception | None, making: Making, tier: str, out: Path) -> Row:
    """Draws a figure whose runs are there, or have failed of `error`, and compares its table."""
    if error is not None:
        raise error
    began_s, draw = time.monotonic(), partial(drawn, name, git=git_revision(), out=out, tier=tier)
    found = draw()
    if isinstance(found, RunError) and has_live_runs(name):
        announce(f"made once more: {found}")
        for _, again in make_runs([name], making, out, tier):  # of live runs the INVALID ones
            if again is not None:
                raise again
        found = draw()
    if isinstance(found, RunError):
        raise found
    if not making.live:  # another profile's times tell nothing of the published runs
        note(name, tier, time.monotonic() - began_s, out)
    return holding.figure_held(name, out, of_one_seed=making.seeds is not None)


def shown(rows: Sequence[Row]) -> Table:
    table = Table("", "name", "outcome", "", box=SIMPLE_HEAD)
    for row in rows:
        style = "red" if row.outcome in DIFFERING else None
        table.add_row(row.what, row.name, row.outcome, row.told, style=style)
    return table


@ends_in_order
def main(arguments: Sequence[str] | None = None) -> int:
    about = parser("reproduce", __doc__)
    about.add_argument("what", nargs="*", metavar="WHAT", help="a paper, a figure, PAPER/CLAIM")
    about.add_argument("--tier", choices=TIERS, default="quick", help="(%(default)s)")
    about.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time")
    of_world = "torch, vllm: live versions alone (%(default)s)"
    about.add_argument("--world", choices=WORLDS, default="sim", help=of_world)
    about.add_argument("--hardware", metavar="NAME", help="live versions alone, on this profile")
    add_launcher(about, "simulated runs")
    chosen = about.parse_intermixed_args(arguments)
    if chosen.jobs < 1:
        raise UsageError(f"--jobs {chosen.jobs} must be at least 1")
    live_alone = chosen.world != "sim" or chosen.hardware is not None
    if live_alone and chosen.tier == "smoke":
        raise UsageError("--tier smoke has its own live run: leave out --world and --hardware")
    profiles = available(CONF, "hardware")
    if chosen.hardware not in (None, *profiles):
        valid = ", ".join(profiles)
        raise UsageError(f"--hardware {chosen.hardware} does not exist; choose one of: {valid}")
    tier: str = "full" if live_alone else chosen.tier
    quick = tier == "quick"
    os.chdir(ROOT)
    interrupts.listen()
    launcher = launcher_words(chosen.launcher, chosen.what)
    names, claims, out = asked([word for word in chosen.what if word not in launcher], tier)
    runs: list[tuple[str, list[str]]] = [(SMOKE_RUN, [])] if tier == "smoke" else []
    if chosen.world == "vllm":
        runs = [(name, run) for name in on_vllm(names) for run in sweep(name)[1]]
        names, claims = [], []
    elif live_alone:
        names, claims = live_versions(names, claims, chosen.world)
    if chosen.hardware:
        check_hardware(names, chosen.hardware)
        for name, run in runs:
            check_runs(name, [run], chosen.hardware, name)
    folder = REPRODUCED / (chosen.hardware or tier)
    make_folder(folder)
    live = [name for name in names if quick and has_live_runs(name)]
    names = [name for name in names if name not in live]
    before = expected(names, tier, chosen.jobs, last_times())
    before = replace(
        before, num_runs=before.num_runs + len(runs), num_live=before.num_live + len(runs),
        seconds=before.seconds + sum(RUN_S[name] for name, _ in runs),
        num_bytes=before.num_bytes + len(runs) * RUN_BYTES,
        num_first=before.num_first + len({name for name, _ in runs}),
    )  # fmt: skip
    announce(before.told(len(names), chosen.jobs, disk_usage(ROOT).free))
    if names:
        announce(fill(", ".join(names), 98, initial_indent="  ", subsequent_indent="  "))
    profile = [f"hardware={chosen.hardware}"] if chosen.hardware else []
    rows = [kept_going("run", run_name(*each), partial(live_run, *each, profile)) for each in runs]
    live_of = {name: live_words(name, chosen.hardware) for name in names}
    making = Making(chosen.jobs, seeds=1 if quick else None, launcher=launcher)
    for row in made_again(names, making, tier, folder, live_of):
        rows.append(row)
        report.write(folder, [row])  # whatever ends the command later
    failed = {row.name for row in rows if row.outcome == FAILED}
    of_made = [claim for claim in claims if claim.figure in names and claim.figure not in failed]
    rows += (holding.of_the_same_seeds if quick else holding.judged_again)(of_made, folder)
    left_out = [Row("figure", name, UNTOLD, "needs a real engine: --tier full") for name in live]
    why = "left out of --tier quick unless it is named; claims that rest on it:"
    left_out += [Row("figure", name, UNTOLD, f"{why} {num}") for name, num in out.items()]
    report.write(folder, rows, left_out, {f"{each.paper}/{each.id}" for each in claims})
    rows += left_out
    console = Console()
    console.print(shown(rows))
    console.print(str((folder / "report.md").relative_to(ROOT)))
    console.print(report.verdict(rows), soft_wrap=True)
    return 1 if report.differing(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
