"""A run imports what it uses and composes once: the start of a small run is the time of these."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.__main__ import says_no_mode
from harness.configuration.options import CONF

RUN = """
import json, runpy, sys
from hydra._internal.config_loader_impl import ConfigLoaderImpl
load, composed = ConfigLoaderImpl.load_configuration, []
ConfigLoaderImpl.load_configuration = lambda *a, **k: composed.append(0) or load(*a, **k)
try:
    runpy.run_module("harness", run_name="__main__", alter_sys=True)
finally:
    found = sorted(sys.modules), len(composed)
    import pandas, pyarrow
    assert pyarrow.table({"a": [1.0]}).to_pandas()["a"].tolist() == [1.0]
    assert pyarrow.array(pandas.Series([1.0, None])).null_count == 1
    json.dump(found, open("FOUND", "w"))
"""
WORDS = (
    "+system=vllm", "+workload=azure_code", "engine=sim", "workload.num_requests=2",
    "tracking=none", "progress=false",
)  # fmt: skip
UNUSED = {
    "datasets", "matplotlib.pyplot", "pandas", "scipy", "seaborn", "torch", "transformers", "vllm",
    "wandb",
}  # fmt: skip


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
    code = RUN.replace("FOUND", str(tmp_path / "found.json"))
    words = [*WORDS, f"figure={figure}", f"hydra.run.dir={tmp_path / 'run'}"]
    subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True)
    imported, composed = json.loads((tmp_path / "found.json").read_text())
    assert unused.isdisjoint(imported)
    assert composed == 1
    assert (tmp_path / "run" / "report.html").is_file() == (figure != "null")


def test_words_that_may_ask_for_a_sweep_are_known() -> None:
    assert all(map(says_no_mode, [*WORDS, "~faults", "hydra.run.dir=somewhere", "slo.ttft_s=1"]))
    for word in (
        "-m", "--config-dir", "+experiment=aegaeon_fig14", "hydra.mode=MULTIRUN",
        "+experiment/aegaeon/inputs@_global_=published", "hydra.searchpath=[file://.]",
    ):  # fmt: skip
        assert not says_no_mode(word)
    asking = {
        path.relative_to(CONF).parts[0]
        for path in CONF.rglob("*.yaml")
        if "mode: MULTIRUN" in path.read_text()
    }
    assert asking == {"experiment"}
