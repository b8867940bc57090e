"""Lists and describes workloads, and writes their requests into a file.

Exit status: 0 done; 1 a download or a write failed; 2 a wrong command.
"""

from __future__ import annotations

import logging
import sys
from argparse import ArgumentParser
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

from harness.configuration.command_line import ends_in_order
from harness.errors import RunError, UsageError
from workloads import compose, describe


@ends_in_order
def main(arguments: list[str]) -> int:
    args = parser().parse_args(arguments)
    handler = RichHandler(console=Console(stderr=True), show_time=False, show_path=False)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler])
    if args.command == "list":
        list_workloads()
        return 0
    if args.command == "schedule":
        if args.out.suffix != ".parquet":
            raise UsageError(f"{args.out} must end in .parquet")
        if not args.out.parent.is_dir():
            raise UsageError(f"{args.out.parent} is not a directory")
    config = compose.composed(args.name, args.overrides)
    try:
        schedule = compose.workload(config).schedule()
        if args.command == "schedule":
            schedule.save(args.out)
            print(f"{args.out}: {len(schedule)} requests, sha256 {schedule.sha256()}")
            return 0
        describe.print_table(args.name, schedule, Console())
    except OSError as error:
        raise RunError(str(error)) from error
    return 0


def parser() -> ArgumentParser:
    top = ArgumentParser("python -m harness workloads", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="all workloads and their datasets")
    about = "rows, rate, burstiness, lengths and origin of one workload"
    show = commands.add_parser("describe", help=about)
    about = "write the requests to a file, for +workload=trace"
    write = commands.add_parser("schedule", help=about)
    for command in (show, write):
        command.add_argument("name", metavar="NAME", help="a workload of the list")
    write.add_argument("out", type=Path, metavar="OUT.parquet", help="the file to write")
    for command in (show, write):
        key = "e.g. workload.num_requests=100"
        command.add_argument("overrides", nargs="*", metavar="key=value", help=key)
    return top


def list_workloads() -> None:
    table = Table("workload", "dataset", box=None)
    for name, title in compose.titles().items():
        table.add_row(name, title)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
