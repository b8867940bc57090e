"""`python -m harness COMMAND …`: what there is beside runs, each a module with its own --help; how
commands explain themselves, and how they end."""

from __future__ import annotations

import runpy
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable
from errno import EACCES, EISDIR, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR
from functools import wraps
from typing import ParamSpec

from harness.errors import InvalidRun, RunError, UsageError, told

Given = ParamSpec("Given")
INTERRUPTED = 130  # exit status
# What the system says of a name that was given to a command, and that can be of no file
NO_SUCH_PLACE = (ENAMETOOLONG, ENOENT, ENOTDIR, EISDIR, EACCES, ELOOP)
COMMANDS = {  # `harness.configuration.key_help` has a line for each
    "figures": "harness.experiments.figures",
    "claims": "harness.claims",
    "reproduce": "harness.reproduce",
    "compare": "harness.comparing",
    "capacity": "harness.experiments.capacity",
    "calibrate": "harness.calibrate",
    "fidelity": "harness.fidelity",
    "faults": "harness.faulting",
    "plots": "plots",
    "workloads": "workloads",
    "score": "harness.records.score",
    "recover": "harness.records.recover",
    "export": "harness.exporting",
    "import": "harness.exporting.importing",
    "explain": "harness.exporting.explain",
    "selftest": "harness.selftest",
}


def run_command(name: str) -> None:
    """Runs the module as `python -m` would, with the words after the command's name."""
    del sys.argv[1]
    runpy.run_module(COMMANDS[name], run_name="__main__", alter_sys=True)


def parser(command: str, about: str | None) -> ArgumentParser:
    """The parser of `python -m harness COMMAND`; `about` is shown as it stands."""
    return ArgumentParser(
        f"python -m harness {command}",
        description=about,
        formatter_class=RawDescriptionHelpFormatter,
    )


def ends_in_order(main: Callable[Given, int]) -> Callable[Given, int]:
    """`main`, which gives an exit status, and tells every error that a user can cause in one
    sentence: 2 for a wrong command, 1 for what broke, 3 for an INVALID run without which it cannot
    do, 130 for an interrupt."""

    @wraps(main)
    def ended(*args: Given.args, **kwargs: Given.kwargs) -> int:
        try:
            return main(*args, **kwargs)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return INTERRUPTED
        except (UsageError, RunError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2 if isinstance(error, UsageError) else 3 if isinstance(error, InvalidRun) else 1
        except OSError as error:
            if error.errno not in NO_SUCH_PLACE:
                raise
            print(f"error: {told(f'{error.filename}: {error.strerror}')}", file=sys.stderr)
            return 2

    return ended
