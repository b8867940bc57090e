"""`python -m harness COMMAND …`: what there is beside runs, each a module with its own --help."""

from __future__ import annotations

import runpy
import sys

COMMANDS = {  # `harness.configuration.key_help` has a line for each
    "figures": "harness.experiments.figures",
    "claims": "harness.claims",
    "capacity": "harness.experiments.capacity",
    "calibrate": "harness.calibrate",
    "fidelity": "harness.fidelity",
    "plots": "plots",
    "workloads": "workloads",
    "recover": "harness.records.recover",
}


def run_command(name: str) -> None:
    """Runs the module as `python -m` would, with the words after the command's name."""
    del sys.argv[1]
    runpy.run_module(COMMANDS[name], run_name="__main__", alter_sys=True)
