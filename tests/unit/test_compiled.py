"""What is compiled is used while its sources are those it was made of, and never after."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from harness import compiled

SOURCE = "harness/clock.py"


def built(content: str) -> dict[str, object]:
    soabi = sysconfig.get_config_var("SOABI")
    return {"folder": "f", "soabi": soabi, "sources": {SOURCE: content}, "modules": {}}


def test_a_changed_source_makes_all_of_it_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARNESS_PURE", raising=False)
    assert compiled.why_python(built(compiled.sha256(SOURCE))) == ""
    assert compiled.why_python(built("another")) == f"changed since the build: {SOURCE}"
    gone = built("x") | {"sources": {"harness/gone.py": "x"}}
    assert compiled.why_python(gone) == "changed since the build: harness/gone.py"


def test_python_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_PURE", "1")
    assert compiled.why_python(built(compiled.sha256(SOURCE))) == "HARNESS_PURE=1"


def test_what_was_built_for_another_python_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARNESS_PURE", raising=False)
    other = built(compiled.sha256(SOURCE)) | {"soabi": "cpython-30"}
    assert compiled.why_python(other) == "built for another Python"


SEEN = """
import harness.compiled
import harness.clock, systems.baselines.vllm
print(harness.compiled.state(), harness.clock.__file__, hasattr(systems.baselines.vllm, "EDITED"))
"""


def seen(checkout: Path) -> str:
    env = {k: v for k, v in os.environ.items() if k != "HARNESS_PURE"}
    command = [sys.executable, "-c", SEEN]
    return subprocess.run(
        command, cwd=checkout, env=env, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def test_an_edit_takes_effect_in_the_next_run(tmp_path: Path) -> None:
    """In a copy of this checkout with what was built here."""
    if not (compiled.FOLDER / compiled.INDEX).is_file():
        pytest.skip("nothing is compiled here: `make setup` does, with a C compiler")
    for folder in ("harness", "systems", "build/compiled"):
        ignored = shutil.ignore_patterns("__pycache__", "mypy_cache", "*.work")
        shutil.copytree(compiled.PROJECT / folder, tmp_path / folder, ignore=ignored)
    before = seen(tmp_path)
    if before.startswith("Python: changed since"):
        pytest.skip(before)
    assert before.startswith("compiled ")
    assert before.endswith(".so False\n")
    with (tmp_path / "systems/baselines/vllm.py").open("a") as policy:
        policy.write("EDITED = True\n")
    after = seen(tmp_path)
    assert after.startswith("Python: changed since the build: systems/baselines/vllm.py")
    assert after.endswith("clock.py True\n")
