"""Says why a number differs between tools: by its definition, or since something else was measured.

Each quantity of a finished run is computed by the definition of this harness, of vLLM's benchmark,
AIPerf, GuideLLM and inference-perf, whose definitions llm-d's report has. Beside each stands what
makes its mean differ from ours: counting from the sending, leaving out requests that failed,
counting each request by its tokens, or, of good requests, the tool's own rules. With the result
FILE of one of these tools its own means stand beside those of the run. What is left between the two
is no matter of definitions: another run, clock or server. FILE alone: what its own numbers are by
the tool's definitions, and how these differ from ours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.configuration.command_line import ends_in_order, parser
from harness.errors import UsageError
from harness.exporting.conventions import DEFINITIONS, HARNESS, IP, Definition, Seen, percentile
from harness.exporting.results import refuse_llm_d
from harness.files import read_json, write_json
from harness.records.numbers import number, seconds
from harness.records.percentiles import min_samples
from harness.records.run_folder import FinishedRun
from harness.records.run_table import absent, numbers_table, runs_table

MOST = 1e300  # of a mean in a file: more is no number, nor is nan
WHY = {
    "sent": "counts from the sending",
    "completed": "completed requests alone",
    "streamed": "completed requests of several tokens",
    "token": "weighted by tokens",
    "chunk": "one sample a chunk",
    "aiperf": "no answer of one token meets a limit on TPOT; a share of requests that ended",
    IP: "no answer of one token meets a limit on TTFT or TPOT; window of completed requests",
}
RATE_WHY = WHY | {"sent": "window begins with the first sending"}
PARTS = ("anchor", "of", "each")  # of a Definition
PERCENTILES = (
    "Percentiles are linear between samples, GuideLLM's the smallest sample that reaches the share"
)
ROUNDING = 1e-9  # of a mean: less is left over by arithmetic alone
WINDOW = {"arrival": "first arrival to last token", "sent": "first sending to last token"}


def ours_of(one: Definition) -> Definition:
    """Our definition of the same quantity."""
    return next(each for each in DEFINITIONS if each.quantity == one.quantity)


def reasons(seen: Seen, ours: Definition, theirs: Definition) -> list[tuple[str, float]]:
    """What changes our mean to theirs, step by step, and by how much: first the anchor, then the
    requests, the samples and the tool's own rules. A step that changes nothing here is left out."""
    words = RATE_WHY if ours.is_rate else WHY
    now, before = ours, seen.of(ours).mean
    found = []
    for change in ({name: getattr(theirs, name)} for name in (*PARTS, "tool")):
        now = replace(now, **change)
        after = seen.of(now).mean
        if before is not None and after is not None and after != before:
            (value,) = change.values()
            found.append((words.get(value, value), after - before))
        before = after
    return found


def rows(run: FinishedRun, told: Mapping[Definition, float]) -> Iterator[dict[str, Any]]:
    """A row for each definition; seconds, rates per second, shares. `told`: means in a file."""
    seen = Seen(run)
    for one in DEFINITIONS:
        samples = seen.of(one)
        rate, method = one.is_one_number, one.percentiles
        row = {
            "quantity": one.quantity, "tool": one.tool, "name": one.name, "id": one.id,
            "num_samples": len(samples.values), "mean": samples.mean,
            "p50": None if rate else percentile(samples, 50, method),
            "p99": None if rate else percentile(samples, 99, method),
            "percentiles": None if rate else method,
            "differs": dict(reasons(seen, ours_of(one), one)),
        }  # fmt: skip
        if one in told:
            row |= {"in_file": told[one], "left": None}
            if samples.mean is not None:
                row["left"] = told[one] - samples.mean
        yield row


def rows_of_file(told: Mapping[Definition, float]) -> Iterator[dict[str, Any]]:
    """A row for each mean of a tool's file, in seconds or per second: the tool's definition, and of
    ours what `PARTS` names."""
    for one, mean in told.items():
        window = WINDOW[one.anchor] if one.is_rate else None
        ours = {part: getattr(ours_of(one), part) for part in PARTS}
        yield asdict(one) | {
            "id": one.id, "in_file": mean, "window": window, "ours": ours,
            "percentiles": None if one.is_one_number else one.percentiles,
        }  # fmt: skip


def means_in(file: Path) -> dict[Definition, float]:
    """The means that a tool's file tells, in seconds or per second. UsageError where it is of no
    tool that is known here."""
    with suppress(OSError):
        refuse_llm_d(file.read_bytes(), file)
    content: Any = read_json(file)
    tools = {
        "vllm": "mean_ttft_ms", "aiperf": "time_to_first_token", "guidellm": "benchmarks",
        IP: "load_summary",
    }  # fmt: skip
    tool = next((name for name, key in tools.items() if key in content), None)
    if tool is None:
        keys = ", ".join(f"{key} ({name})" for name, key in tools.items())
        raise UsageError(f"{file} is no result of a tool that is known: it has none of {keys}")
    every = content[tools[tool]]
    if tool == "guidellm" and not (isinstance(every, list) and len(every) == 1):
        raise UsageError(f"{file} must have one benchmark, with which the run is compared")
    found = {}
    for one in DEFINITIONS:
        if one.tool == tool and (value := _mean(content, tool, one)) is not None:
            if type(value) not in (int, float) or not abs(value) < MOST:
                raise UsageError(f"{file}: {one.name} is {str(value)[:40]!r}, no number")
            found[one] = value / one.unit
    if not found:
        raise UsageError(f"{file} has none of the means of {tool}'s results")
    return found


def _mean(content: Any, tool: str, one: Definition) -> float | None:
    rate, name = one.is_one_number, one.name
    group = "goodput_metrics" if one.quantity.startswith("good") else "throughput"
    path = {
        "vllm": (name if rate else f"mean_{name}",),
        "aiperf": (name, "avg"),
        IP: ("successes", *((group, name) if rate else ("latency", name, "mean"))),
        "guidellm": ("benchmarks", 0, "metrics", name, "successful", "mean"),
    }[tool]
    try:
        mean: float | None = reduce(getitem, path, content)
    except (KeyError, IndexError, TypeError):
        return None
    return mean


def shown(found: Sequence[Mapping[str, Any]], title: str) -> Table:
    """What makes a mean differ from ours stands below its definition."""
    with_file = any("in_file" in row for row in found)
    names = ["mean", "P50", "P99", *(["in the file", "left over"] if with_file else [])]
    made = runs_table(
        escape(title), "by whose definition", names, min_width=24, caption=PERCENTILES
    )
    for row in found:
        show = seconds if row["percentiles"] else number
        cells = [_cell(row["mean"], show), *(_percentile(row, key, show) for key in ("p50", "p99"))]
        if with_file:
            mean, left = row["mean"], row.get("left")
            left = 0.0 if left is not None and abs(left) <= ROUNDING * abs(mean) else left
            cells += [_cell(row.get("in_file"), show), _cell(left, show, signed=True)]
        why = [
            f"    {word} ({_cell(by, show, signed=True)})" for word, by in row["differs"].items()
        ]
        first = [row["quantity"]] if row["tool"] == HARNESS else []
        cells = ["\n" * len(first) + cell for cell in cells]
        made.add_row("\n".join([*first, f"  {row['id']}", *why]), *cells)
    return made


def shown_alone(found: Sequence[Mapping[str, Any]], title: str) -> Table:
    made = numbers_table("quantity", ["in the file"], title=title, caption=PERCENTILES)
    made.columns[0].overflow = "fold"
    for name in ("by its", "counts from", "requests", "one sample", "window"):
        made.add_column(name, overflow="fold")
    for row in found:
        show = seconds if row["percentiles"] else number
        about = (
            row[part] + (f" (ours: {ours})" if ours != row[part] else "")
            for part, ours in row["ours"].items()
        )
        name, window = row["name"], row["window"] or ""
        made.add_row(row["quantity"], show(row["in_file"]), name, *about, window)
    return made


def _percentile(row: Mapping[str, Any], column: str, show: Callable[[float], str]) -> str:
    """Ours needs enough samples, as in every table; other tools print theirs of any number."""
    enough = row["num_samples"] >= min_samples(float(column.removeprefix("p")))
    if row["tool"] == HARNESS and row[column] is not None and not enough:
        return absent(row, column)
    return _cell(row[column], show)


def _cell(value: float | None, show: Callable[[float], str], *, signed: bool = False) -> str:
    if value is None:
        return ""
    return f"{'+' if signed and value > 0 else ''}{show(value)}"


@ends_in_order
def main(arguments: Sequence[str] | None = None) -> int:
    about = parser("explain", __doc__)
    about.add_argument("run", type=Path, metavar="RUN", help="the folder of a run, or FILE alone")
    about.add_argument("file", type=Path, nargs="?", metavar="FILE",
                       help="a result (JSON) of vllm bench serve, AIPerf, GuideLLM or "
                       "inference-perf")  # fmt: skip
    about.add_argument("--json", type=Path, metavar="OUT", help="the same as JSON")
    chosen = about.parse_args(arguments)
    alone = chosen.file is None and chosen.run.is_file()
    file = chosen.run if alone else chosen.file
    told = means_in(file) if file else {}
    if alone:
        found = list(rows_of_file(told))
        table = shown_alone(found, f"{file.name}, by the definitions of {found[0]['tool']}")
    else:
        run = FinishedRun.load(chosen.run)
        found = list(rows(run, told))
        label = "SIMULATED" if run.manifest["simulated"] else "measured"
        table = shown(found, f"{run.path.name}, {label}, {run.invalid or 'VALID'}")
    Console().print(table)
    if chosen.json:
        write_json(chosen.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
