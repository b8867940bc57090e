"""A run imports what it uses: the start of a small run is the time of its imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import json, runpy, sys
try:
    runpy.run_module("harness", run_name="__main__", alter_sys=True)
finally:
    json.dump(sorted(sys.modules), open("NAMES", "w"))
"""
WORDS = (
    "+system=vllm", "+workload=azure_code", "engine=sim", "workload.num_requests=2",
    "tracking=none", "progress=false",
)  # fmt: skip
UNUSED = {"datasets", "matplotlib.pyplot", "scipy", "torch", "transformers", "vllm", "wandb"}


@pytest.mark.parametrize(
    ("figure", "unused"),
    [
        ("plots.report.draw", UNUSED),
        ("null", UNUSED | {"jinja2", "matplotlib", "plots"}),
    ],
)
def test_a_simulated_run_imports_no_library_that_it_does_not_use(
    figure: str, unused: set[str], tmp_path: Path
) -> None:
    names = tmp_path / "names.json"
    code = RUN.replace("NAMES", str(names))
    words = [*WORDS, f"figure={figure}", f"hydra.run.dir={tmp_path / 'run'}"]
    subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True)
    assert unused.isdisjoint(json.loads(names.read_text()))
    assert (tmp_path / "run" / "report.html").is_file() == (figure != "null")
