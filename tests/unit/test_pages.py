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


def kept(root: Path = ROOT) -> list[str]:
    """The files of a checkout, or of an archive, which lists them and has no history."""
    if not (root / ".git").exists():
        lines = (root / "SHA256SUMS").read_text().splitlines()
        return [line.split(maxsplit=1)[1] for line in lines]
    listed = subprocess.run(
        ["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True
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
    assert found
    assert {page: names for page, names in found.items() if names} == {}


def test_an_archive_without_history_lists_its_files(tmp_path: Path) -> None:
    (tmp_path / "SHA256SUMS").write_text("0a  docs/a.md\n0b  b.py\n")
    assert kept(tmp_path) == ["docs/a.md", "b.py"]


NOT_RUN = "### What the public workflow does not run"


def commands(text: str) -> list[str]:
    """Those of its blocks, without their comments, then those within its sentences."""
    blocks = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    lines = [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]
    sentences = " ".join(re.sub(r"```\n.*?```", "", text, flags=re.DOTALL).split())
    found = [*lines, *re.findall(r"`([^`]+)`", sentences)]
    return [each for each in found if each.startswith(("make ", "python -m ", "tar ", "cd "))]


def run_by(workflow: str, job: str) -> list[str]:
    """The commands of a job's steps, of a matrix with each of its targets."""
    of = yaml.safe_load(workflow)["jobs"][job]
    typed = [step["run"] for step in of["steps"] if "run" in step]
    targets = of.get("strategy", {}).get("matrix", {}).get("target", [""])
    return [each.replace("${{ matrix.target }}", target) for each in typed for target in targets]


def unlisted(page: str, ran: list[str]) -> tuple[set[str], set[str]]:
    """The commands of both parts that no workflow runs and the page does not list, and those that
    it lists without need. `…`: any words."""
    both = page.partition("## Getting Started")[2].partition("## Artifact check-list")[0]
    told, _, table = both.partition(NOT_RUN)
    listed = commands(" ".join(row.split("|")[1] for row in table.splitlines() if "|" in row))
    left = set(commands(told)) - set(ran)
    like = {each: {name for name in left if name.startswith(each.rstrip("…"))} for each in listed}
    return left.difference(*like.values()), {each for each, names in like.items() if not names}


def test_ci_follows_the_evaluators_page_to_the_letter() -> None:
    page = (ROOT / "docs/artifact.md").read_text()
    workflow = (ROOT / ".github/workflows/tests.yml").read_text()
    first = page.partition("## Getting Started")[2].split("```")[1]
    assert run_by(workflow, "getting-started") == commands(f"```{first}```")
    ran = [each for job in yaml.safe_load(workflow)["jobs"] for each in run_by(workflow, job)]
    assert unlisted(page, ran) == (set(), set())
    first, *later = (
        step for step in yaml.safe_load(workflow)["jobs"]["detailed-instructions"]["steps"]
        if "run" in step
    )  # fmt: skip
    assert "if" not in first
    assert {step["if"] for step in later} == {"${{ !cancelled() }}"}, "a difference skips no other"


def test_a_command_that_is_neither_run_nor_listed_is_found() -> None:
    page = (
        "## Getting Started\n\n```\nmake a      # b\nmake c X=1\n```\n`make\nd` and `python -m e`\n"
        f"{NOT_RUN}\n| `make c X=…`, `make f` | hours |\n## Artifact check-list\n`make g`\n"
    )
    assert commands(page)[:2] == ["make a", "make c X=1"]
    assert unlisted(page, ["make a", "make d"]) == ({"python -m e"}, {"make f"})


def test_the_appendix_has_the_heads_of_ctunings_template() -> None:
    _, _, appendix = (ROOT / "docs/artifact.md").read_text().partition("## Artifact check-list")
    assert re.findall(r"^\*\*(.+?)\.\*\*", appendix, re.MULTILINE) == [
        "Abstract",
        *(f"Description: {each}" for each in (
            "how to access", "hardware dependencies", "software dependencies", "data sets", "models"
        )),
        "Installation", "Experiment workflow", "Evaluation and expected results",
        "Experiment customization", "Notes", "Methodology",
    ]  # fmt: skip
