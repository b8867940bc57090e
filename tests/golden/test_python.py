"""Golden runs and the simulator's contract hold in Python too, where they have run compiled."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from harness import compiled
from tests.running import ROOT

CHOSEN = ("tests/golden/test_golden.py", "tests/unit/test_sim.py")


def test_what_holds_compiled_holds_in_python() -> None:
    if compiled.state().startswith("Python"):
        pytest.skip(f"the other tests ran in Python: {compiled.state()}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CHOSEN],
        cwd=ROOT, env=os.environ | {"HARNESS_PURE": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
