"""Pages and configuration name only files of this project that are there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml

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


def test_pages_name_files_that_are_there() -> None:
    files = kept()
    found = {page: absent((ROOT / page).read_text(), files) for page in pages()}
    assert {page: names for page, names in found.items() if names} == {}


def getting_started(page: str) -> list[str]:
    """The commands of the page's first block of them, without their comments."""
    block = page.partition("## Getting Started")[2].split("```")[1]
    return [line.partition("#")[0].strip() for line in block.splitlines() if line.strip()]


def test_ci_follows_the_evaluators_page_to_the_letter() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]
    typed = [step["run"] for step in jobs["getting-started"]["steps"] if "run" in step]
    assert typed
    assert typed == getting_started((ROOT / "docs/artifact.md").read_text())


def test_a_command_is_what_stands_before_its_comment() -> None:
    page = (
        "x\n## Getting Started (1 minute)\n\n```\nmake a      # b\nmake c\n```\n```\nmake d\n```\n"
    )
    assert getting_started(page) == ["make a", "make c"]
