"""Lists and describes workloads, and writes their requests into a file.

Exit status: 0 done; 1 a download or a write failed; 2 a wrong command.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

from harness.errors import RunError, UsageError
from workloads import compose, describe


def main(arguments: list[str]) -> int:
    top = parser()
    args, rest = top.parse_known_args(arguments)  # overrides may come after an option
    if any(text.startswith("-") for text in rest) or (rest and args.command == "list"):
        top.error(f"unknown arguments: {' '.join(rest)}")
    errors = Console(stderr=True)
    handler = RichHandler(console=errors, show_time=False, show_path=False)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler])
    try:
        if args.command == "list":
            list_workloads()
            return 0
        if args.command == "schedule" and args.out.suffix != ".parquet":
            raise UsageError(f"{args.out} must end in .parquet")
        target = args.plot if args.command == "describe" else args.out
        if target is not None and not target.parent.is_dir():
            raise UsageError(f"{target.parent} is not a directory")
        schedule = compose.workload(
            compose.composed(args.name, [*args.overrides, *rest])
        ).schedule()
        if args.command == "schedule":
            schedule.save(args.out)
            print(f"{args.out}: {len(schedule)} requests, sha256 {schedule.sha256()}")
            return 0
        describe.print_table(args.name, schedule, Console())
        if args.plot is not None:
            describe.save_plot(args.name, schedule, args.plot)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (RunError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m harness workloads", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="all workloads and their datasets")
    show = commands.add_parser(
        "describe", help="rows, rate, burstiness, lengths and origin of one workload"
    )
    name, key = "a workload of the list", "e.g. workload.num_requests=100"
    show.add_argument("name", metavar="NAME", help=name)
    show.add_argument("overrides", nargs="*", metavar="key=value", help=key)
    picture = "also draw arrivals and lengths"
    show.add_argument("--plot", type=Path, metavar="FILE.png", help=picture)
    write = commands.add_parser(
        "schedule", help="write the requests to a file, for +workload=trace"
    )
    write.add_argument("name", metavar="NAME", help=name)
    write.add_argument("out", type=Path, metavar="OUT.parquet", help="the file to write")
    write.add_argument("overrides", nargs="*", metavar="key=value", help=key)
    return top


def list_workloads() -> None:
    table = Table("workload", "dataset", box=None)
    for name, title in compose.titles().items():
        table.add_row(name, title)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
