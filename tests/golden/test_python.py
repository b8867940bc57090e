"""What the compiled modules are held to holds in Python too: golden runs, which every policy has,
contracts, the unit tests of kernel and devices, and what cannot run compiled. All other tests run
compiled."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from harness import compiled
from tests.running import ROOT

CHOSEN = (
    "tests/golden/test_golden.py", "tests/contract",
    "tests/unit/device", "tests/unit/pool", "tests/unit/sim_device", "tests/unit/sim_memory",
    "tests/unit/sim_network", "tests/unit/test_sim.py",
    "tests/unit/test_linear.py", "tests/unit/kunserve/test_server.py",  # skipped where compiled
    "tests/unit/aqua/test_service_order.py",
)  # fmt: skip


def test_what_holds_compiled_holds_in_python() -> None:
    """In one process: each takes 3 s to start."""
    if compiled.state().startswith("Python"):
        pytest.skip(f"the other tests ran in Python: {compiled.state()}")
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
            "-m", "not live and not alone", *CHOSEN,
        ],
        cwd=ROOT, env=os.environ | {"HARNESS_PURE": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
