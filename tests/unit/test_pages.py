"""Pages and configuration name only files of this project that are there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OTHERS = re.compile(  # files of projects that are compared with, and those of a tutorial
    r"vllm/|^sim/|kunserve/flash|load_computation|migration_filter|migration_policy"
    r"|roundrobin_router|storage_aware|mysystems/"
)


def kept() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return listed.stdout.split()


def pages() -> list[str]:
    return [
        path
        for path in kept()
        if path.endswith((".md", ".yaml")) and not path.startswith(("results/", "LOG.md"))
    ]


def absent(text: str, files: list[str]) -> list[str]:
    """The Python files that `text` names, by their name or the end of their path, and that are not
    among `files`."""
    named = set(re.findall(r"(?:[\w-]+/)*\w+\.py\b", text))
    return sorted(
        name
        for name in named
        if not OTHERS.search(name) and not any(f"/{file}".endswith(f"/{name}") for file in files)
    )


def test_a_file_that_is_not_there_is_found() -> None:
    text = "`plan.py` and systems/gone/plan.py, vllm/core.py"
    assert absent(text, ["systems/kunserve/plan.py"]) == ["systems/gone/plan.py"]


@pytest.mark.parametrize("page", pages())
def test_pages_name_files_that_are_there(page: str) -> None:
    assert not absent((ROOT / page).read_text(), kept())
