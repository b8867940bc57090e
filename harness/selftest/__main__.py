"""Tests on this machine whether the harness measures rightly, against servers whose answers and
times are known.

Sixteen conformance tests, each of a fault that benchmark harnesses have had: docs/selftest.md. They
need neither a GPU nor a network. Exit status: 0 all passed or were skipped with a reason, 1 one
failed, 2 a wrong command.

--certificate measures instead by how much the client's TTFT and TBT differ from a server's own, at
up to 1,024 streams and 400 requests/s, in about two minutes. Live runs on this machine carry it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.configuration.command_line import ends_in_order, parser
from harness.errors import UsageError
from harness.files import write_json
from harness.records.manifest import git_revision, machine, utc
from harness.running import interrupts
from harness.selftest import answers, load, whole
from harness.selftest.bench import FAILED, Bench, Conformance
from harness.selftest.certify import certified
from harness.selftest.prompts import prompts

TESTS = (
    load.stall, answers.chunks, answers.short_answers, answers.failures, load.long_stream,
    load.rate, whole.arrivals, prompts, answers.prefix_cache, answers.prompt_lengths,
    answers.goodput, whole.resume, whole.mistyped_keys, load.concurrency, answers.exported,
    whole.queues,
)  # fmt: skip
BESIDE = 2  # tests that depend on no time, at once


def chosen_of(numbers: Sequence[str]) -> list[Conformance]:
    """The tests of `numbers`, such as 5 or 1-4; all where there are none. UsageError for what is no
    test's number."""
    known = [each.number for each in TESTS]
    wanted: set[int] = set()
    for word in numbers:
        first, dash, last = word.partition("-")
        both = (first, last if dash else first)
        ends = [int(each) if each.isdecimal() else 0 for each in both]
        if not {*ends} <= {*known} or ends[0] > ends[1]:
            raise UsageError(f"--only {word} is no test; valid: {known[0]} to {known[-1]}")
        wanted |= {*range(ends[0], ends[1] + 1)}
    return [each for each in TESTS if not wanted or each.number in wanted]


def results(tests: Sequence[Conformance], bench: Bench) -> Iterator[dict[str, Any]]:
    """The result of each test as it comes: those that depend on no time two at once, the longest
    first (vLLM's start, then the last tests), then one by one those that do."""
    together = [each for each in reversed(tests) if not each.alone]
    together.sort(key=lambda each: each is not prompts)
    with ThreadPoolExecutor(min(BESIDE, os.cpu_count() or 1)) as pool:
        try:
            for row in as_completed([pool.submit(each.result, bench) for each in together]):
                yield row.result()
        finally:
            pool.shutdown(cancel_futures=True)
    for each in tests:
        if each.alone:
            yield each.result(bench)


def told(row: dict[str, Any]) -> str:
    """One line of progress."""
    head = f"{row['number']:>2} {row['name']:<17} {row['result']:<7}"
    return f"{head} {row['found']} ({row['seconds']:.0f} s)"


def tested(numbers: Sequence[str], announce: Callable[[str], None]) -> dict[str, Any]:
    """The content of --json."""
    tests = chosen_of(numbers)
    began = datetime.now(UTC)
    rows = []
    with tempfile.TemporaryDirectory(prefix="selftest-") as folder:
        for row in results(tests, Bench(Path(folder))):
            announce(told(row))
            rows.append(row)
    rows.sort(key=lambda row: int(row["number"]))
    return {
        "began_utc": utc(began), "machine": machine(), "git": git_revision(),
        "seconds": round((datetime.now(UTC) - began).total_seconds(), 1), "tests": rows,
    }  # fmt: skip


def announce(line: str) -> None:
    print(line, flush=True)


@ends_in_order
def main(arguments: Sequence[str] | None = None) -> int:
    about = parser("selftest", __doc__)
    about.add_argument("--only", nargs="+", default=[], metavar="N", help="tests such as 5, or 1-4")
    about.add_argument("--json", type=Path, metavar="FILE", help="write what was found")
    help_certificate = "measure the client's certificate instead"
    about.add_argument("--certificate", action="store_true", help=help_certificate)
    help_runs = "where --certificate is kept, and runs look for it: their runs_dir (%(default)s)"
    about.add_argument(
        "--runs-dir", type=Path, default=Path("results/runs"), metavar="DIR", help=help_runs
    )
    chosen = about.parse_args(arguments)
    interrupts.listen()
    if chosen.certificate:
        if chosen.only or chosen.json is not None:
            raise UsageError("--certificate goes with --runs-dir alone: it makes no test")
        with tempfile.TemporaryDirectory(prefix="selftest-") as folder:
            print(certified(Bench(Path(folder)), chosen.runs_dir, announce))
        return 0
    if chosen.json is not None and not chosen.json.absolute().parent.is_dir():
        raise UsageError(f"--json {chosen.json}: there is no folder {chosen.json.parent}")
    made = tested(chosen.only, announce)
    counts = [row["result"] for row in made["tests"]]
    said = ", ".join(f"{counts.count(each)} {each}" for each in sorted({*counts}))
    print(f"{said}, in {made['seconds']:.0f} s")
    if chosen.json is not None:
        write_json(chosen.json, made)
    return int(FAILED in counts)


if __name__ == "__main__":
    sys.exit(main())
