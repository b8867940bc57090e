"""`python -m harness capacity KEY=LO..HI until CONDITION …`: where a condition begins or ends.

    python -m harness capacity hardware.num_devices=1..16 until 'ttft_s.p99<1' \\
        +system=vllm +workload=azure_conv workload.scale.rate=4 model=llama3-8b engine=sim \\
        hardware=a100x16

Finds, between LO and HI, the largest value of KEY for which CONDITION holds, or the smallest, by
bisection. With whole LO and HI the value is whole. CONDITION compares numbers of summary.json, by
dotted names, e.g. 'ttft_s.p99<1 and tpot_s.p99<=0.1'. What follows is what any run takes, on any
engine.

Each value that is tried is a run in FOLDER/VALUE. A complete run is not repeated. The answer is
in capacity.json and capacity.png in FOLDER.

Values are tried one after another on this host. --launcher NAME has one of Hydra's launchers try
--jobs of them at a time, evenly between the two that bound the answer; its keys are
hydra.launcher.KEY=VALUE. Live runs of one host wait there for one another.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from itertools import pairwise
from math import floor
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.configuration.checks import require
from harness.configuration.command_line import INTERRUPTED, ends_in_order, parser
from harness.errors import UsageError
from harness.experiments.launched import Launched, add_launcher, launcher_words
from harness.experiments.probes import Probe, Term, run_probe
from harness.files import read_json, write_json
from harness.records.run_table import captions
from harness.running import interrupts

TERM = re.compile(r"\s*([^\s<>]+)\s*(<=|>=|<|>)\s*([-+]?[0-9.]*[0-9](?:e[-+]?[0-9]+)?)\s*")
SIMULATED = "engine=sim"  # live runs would wait for one another, or load one endpoint together
RANGE = re.compile(r"([\w./@]+)=([^.]\S*?)\.\.(\S+)")
Probing = Callable[[float, str], Probe]  # at a value of the key, with the word that sets it
Try = Callable[[Sequence[float]], list[Probe]]  # at each of these values


@dataclass(frozen=True, slots=True)
class Span:
    """What is searched. `whole`: whole numbers; else to within `within` of a value."""

    key: str
    low: float
    high: float
    whole: bool
    within: float

    def between(self, low: float, high: float, count: int) -> list[float]:
        """At most `count` values to try between two that disagree; none: they are near enough."""
        if high - low <= (1 if self.whole else self.within * abs(high)):
            return []
        parts = count + 1
        found = [(low * (parts - part) + high * part) / parts for part in range(1, parts)]
        if self.whole:
            found = [float(floor(value)) for value in found]
        return [value for value in dict.fromkeys(found) if low < value < high]

    def word(self, value: float) -> str:
        return f"{self.key}={int(value) if self.whole else format(value, '.6g')}"


def span_of(text: str, within: float) -> Span:
    """Raises UsageError."""
    found = RANGE.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is not KEY=LO..HI, e.g. hardware.num_devices=1..16")
    key, *ends = found.groups()
    try:
        low, high = map(float, ends)
    except ValueError:
        raise UsageError(f"{text!r}: {ends[0]} and {ends[1]} must be numbers") from None
    require(low < high < float("inf"), f"{text!r}: {ends[0]} must be below {ends[1]}")
    require(0 < within < 1, f"--within={within:g} must be above 0 and below 1")
    return Span(key, low, high, all(end.lstrip("-").isdigit() for end in ends), within)


def terms_of(condition: str) -> list[Term]:
    """Raises UsageError."""
    terms = []
    for part in map(str.strip, re.split(r"\band\b", condition)):
        found = TERM.fullmatch(part)
        if found is None:
            raise UsageError(f"{part!r} is not METRIC<NUMBER (or <=, >, >=), e.g. ttft_s.p99<1")
        terms.append(Term(found[1], found[2], float(found[3])))
    return terms


def search(span: Span, tried: Try, at_a_time: int = 1) -> list[Probe]:
    """Probes in the order of their values: the ends, and then again and again `at_a_time` values
    between the two neighbours that disagree. Raises UsageError where both ends were refused."""
    low, high = probes = tried([span.low, span.high])
    if low.metrics is None and high.metrics is None:
        raise UsageError(f"{span.word(span.low)} and {span.word(span.high)}: {high.refused}")
    while low.holds != high.holds and (at := span.between(low.value, high.value, at_a_time)):
        found = tried(at)
        probes += found
        neighbours = pairwise([low, *found, high])
        low, high = next(pair for pair in neighbours if pair[0].holds != pair[1].holds)
    return sorted(probes, key=lambda each: each.value)


def answer(span: Span, probes: Sequence[Probe], condition: str) -> str:
    """Says in one sentence where `condition` holds."""
    holding = [each.value for each in probes if each.holds]
    if len(holding) in (0, len(probes)):
        where = "everywhere" if holding else "nowhere"
        ends = f"{span.low:g} and {span.high:g}"
        return f"{condition} holds {where} between {span.key} {ends}, as far as was tried"
    if probes[0].holds:
        return f"{condition} holds up to {span.word(holding[-1])}"
    return f"{condition} holds from {span.word(holding[0])} on"


def tried_here(span: Span, probe: Probing) -> Try:
    """One value after another, on this host."""

    def tried(values: Sequence[float]) -> list[Probe]:
        probes = []
        for value, word in zip(values, map(span.word, values), strict=True):
            with Console(stderr=True).status(escape(word)):
                probes.append(probe(value, word))
        return probes

    return tried


def tried_on(launcher: Launched, span: Span, probe: Probing) -> Try:
    """All values together, one launch."""

    def tried(values: Sequence[float]) -> list[Probe]:
        words = [*map(span.word, values)]
        futures = [launcher.submit(probe, *each) for each in zip(values, words, strict=True)]
        with Console(stderr=True).status(escape(", ".join(words))):
            launcher.launch()
        return [future.result() for future in futures]

    return tried


def show(span: Span, terms: Sequence[Term], probes: Sequence[Probe], found: str) -> None:
    table = Table(title=escape(found), caption_justify="left")
    table.add_column(span.key, justify="right")
    for term in terms:
        table.add_column(f"{term.metric} {term.sign} {term.bound:g}", justify="right")
    table.add_column("run")
    for each in probes:
        values = [f"{m:.4g}" for m in each.metrics or ()] or [""] * len(terms)
        told = escape(each.refused or each.folder.name)
        table.add_row(f"{each.value:g}", *values, told, style="green" if each.holds else None)
    ran = [each.folder for each in probes if each.metrics is not None]
    table.caption = "\n".join(
        [f"every run: {ran[0].parent}", *captions([read_json(ran[-1] / "manifest.json")])]
    )
    Console().print(table)


def default_folder(key: str, words: Sequence[str]) -> Path:
    """One for each search over `key` with the same overrides."""
    digest = hashlib.sha256("\n".join(sorted(words)).encode()).hexdigest()
    name = re.sub(r"[^\w.]", "_", key)
    return Path("results/runs") / f"capacity-{name}-{digest[:8]}"


@ends_in_order
def main(arguments: Sequence[str] | None = None) -> int:
    about = parser("capacity", __doc__)
    about.add_argument("span", metavar="KEY=LO..HI", help="the key, and the range to search")
    about.add_argument("until", choices=["until"], metavar="until", help="this word")
    about.add_argument("condition", metavar="CONDITION", help="e.g. 'ttft_s.p99<1'")
    run = "+system=NAME +workload=NAME …"
    about.add_argument("overrides", nargs="+", metavar=run, help="what each run is given")
    exact = "how exact a value is, as a share of it, if it is not whole (%(default)s)"
    about.add_argument("--within", type=float, default=0.02, metavar="SHARE", help=exact)
    where = "where the runs are; default: results/runs/capacity-KEY-HASH"
    about.add_argument("--folder", type=Path, metavar="DIR", help=where)
    add_launcher(about, "all runs, also live ones")
    jobs = f"values that the launcher tries at a time (2 with {SIMULATED}, else 1)"
    about.add_argument("--jobs", type=int, metavar="N", help=jobs)
    given = about.parse_intermixed_args(arguments)
    require(given.launcher or given.jobs is None, f"--jobs {given.jobs} goes with --launcher NAME")
    together = given.launcher and SIMULATED in given.overrides
    at_a_time = (2 if together else 1) if given.jobs is None else given.jobs
    require(at_a_time >= 1, f"--jobs {given.jobs} must be at least 1")
    interrupts.listen()
    span, terms = span_of(given.span, given.within), terms_of(given.condition)
    launcher = launcher_words(given.launcher, given.overrides)
    words = [word for word in given.overrides if word not in launcher]
    folder = given.folder or default_folder(span.key, words)
    folder = folder.absolute() if launcher else folder  # its tasks begin elsewhere
    probe = partial(run_probe, terms, words, folder, Path.cwd())
    on = partial(tried_on, Launched(launcher, at_a_time)) if launcher else tried_here
    try:
        probes = search(span, on(span, probe), at_a_time)
    except KeyboardInterrupt:
        print("interrupted: the same command goes on where this one ended", file=sys.stderr)
        return INTERRUPTED
    found = answer(span, probes, given.condition)
    show(span, terms, probes, found)
    runs = [asdict(each) | {"folder": each.folder.name} for each in probes]
    content = {"key": span.key, "answer": found, "terms": [*map(asdict, terms)], "probes": runs}
    write_json(folder / "capacity.json", content)
    print(folder / "capacity.json")
    print(import_module("plots.capacity").draw(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
