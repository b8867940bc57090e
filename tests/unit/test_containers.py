"""What can be told of the container files without a container engine: they copy what is there,
before the installation all that it reads, run what the page and the public workflow run, and have a
Python and a CUDA for which the pinned packages are."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from harness.compiled.__main__ import GROUPS
from tests.unit.test_pages import commands, kept, run_by

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = (ROOT / ".github/workflows/tests.yml").read_text()
PINNED = {"cpu": "requirements/cpu.txt", "cuda": "requirements/cuda.txt"}
FILES = {"cpu": ROOT / "Containerfile", "cuda": ROOT / "Containerfile.cuda"}
UBUNTU = {"ubuntu24.04": "3.12"}  # a release's python3


class Step(NamedTuple):
    does: str
    words: str


def steps(text: str) -> list[Step]:
    """The instructions of a container file, without comments, each on one line."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE))
    return [Step(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def of(kind: str) -> list[Step]:
    return steps(FILES[kind].read_text())


def runs(kind: str) -> list[list[str]]:
    """The commands of its RUN and CMD lines, in words."""
    found = [part for step in of(kind) if step.does == "RUN" for part in step.words.split(" && ")]
    (last,) = (json.loads(step.words) for step in of(kind) if step.does == "CMD")
    return [*map(shlex.split, found), last]


def copied(kind: str) -> list[str]:
    """What is copied before the installation."""
    made = of(kind)
    before = made[: made.index(Step("RUN", f"make setup KIND={kind}"))]
    return [name for step in before if step.does == "COPY" for name in step.words.split()[:-1]]


def python(kind: str) -> str:
    image = of(kind)[0].words.rpartition("/")[2]
    told = re.fullmatch(r"python:(\d+\.\d+)-\w+", image)
    return told[1] if told else UBUNTU[image.rpartition("-")[2]]


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@pytest.mark.parametrize("kind", FILES)
def test_its_steps_are_known_and_in_order(kind: str) -> None:
    does = [step.does for step in of(kind)]
    assert (does[0], does[-1]) == ("FROM", "CMD")
    assert set(does) == {"FROM", "RUN", "ENV", "WORKDIR", "COPY", "CMD"}
    assert does.index("WORKDIR") < does.index("COPY"), "else it copies into the root folder"
    assert re.fullmatch(r"docker\.io/\S+:[\w.-]+", of(kind)[0].words), "an image with a version"
    assert of(kind)[-2] == Step("COPY", ". ."), "the whole tree comes last: a page is no new layer"


@pytest.mark.parametrize("kind", FILES)
def test_it_copies_what_a_checkout_has(kind: str) -> None:
    files, left_out = kept(), (ROOT / ".dockerignore").read_text().split()
    for name in copied(kind):
        assert name in files or any(file.startswith(f"{name}/") for file in files), name
        assert not {name, f"{name}/"} & {*left_out}, name


@pytest.mark.parametrize("kind", FILES)
def test_what_is_copied_first_is_all_that_the_installation_reads(kind: str, tmp_path: Path) -> None:
    for name in copied(kind):
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, tmp_path)
            continue
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    plan = ["make", "--dry-run", "setup", f"KIND={kind}", "PYTHON=python3"]
    said = subprocess.run(plan, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert f"-r {PINNED[kind]}" in said.stdout
    assert "-m harness.compiled" in said.stdout
    compiled = [path for paths in GROUPS.values() for path in paths]
    lacking = {str(path) for path in reached(tmp_path, compiled) if not path.is_file()}
    assert not lacking, "mypyc would leave all modules Python"


def reached(root: Path, paths: list[str]) -> set[Path]:
    """The modules of the project that those at `paths` import, and what these import."""
    found: set[Path] = set()
    ahead = [root / path for path in paths]
    while ahead:
        if (path := ahead.pop()) in found:
            continue
        found.add(path)
        if path.is_file():
            ahead += imported(root, path)
    return found


def imported(root: Path, path: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in names:
            if (ROOT / name.partition(".")[0]).is_dir():
                module = root / name.replace(".", "/")
                package = (ROOT / name.replace(".", "/")).is_dir()
                yield module / "__init__.py" if package else module.with_suffix(".py")


def test_a_module_that_is_not_copied_is_found(tmp_path: Path) -> None:
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness/clock.py").write_text("import os\nfrom plots.style import save\n")
    assert reached(tmp_path, ["harness/clock.py"]) == {
        tmp_path / "harness/clock.py", tmp_path / "plots/style.py"
    }  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
def test_it_makes_what_the_page_and_the_workflow_make(kind: str) -> None:
    made = [words for words in runs(kind) if words[0] == "make"]
    assert [words[2:] for words in made] == [[f"KIND={kind}"]] * 2
    assert [words[1] for words in made] == ["setup", "smoke" if kind == "cpu" else "demo"]
    jobs = yaml.safe_load(WORKFLOW)["jobs"]
    ran = {command for job in jobs for command in run_by(WORKFLOW, job)}
    page = commands((ROOT / "docs/artifact.md").read_text())
    assert {" ".join(words[:2]) for words in made} <= ran
    assert f"make {made[-1][1]}" in page
    others = {words[0] for words in runs(kind)} - {"make"}
    assert others == {"apt-get", "rm"}, "all else is the Makefile's"


@pytest.mark.parametrize("kind", FILES)
def test_it_installs_what_the_makefile_calls(kind: str) -> None:
    (asked,) = (words for words in runs(kind) if words[:2] == ["apt-get", "install"])
    packages = {word for word in asked[2:] if not word.startswith("-")}
    assert {"gcc", "git", "make"} <= packages, "a compiler, and the revision of runs"
    assert ({"python3", "python3-dev", "python3-venv"} <= packages) == (kind == "cuda")
    assert "--yes" in asked, "nobody answers"


@pytest.mark.parametrize("kind", FILES)
def test_its_python_is_one_that_the_project_asks_for(kind: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    least = project["requires-python"].removeprefix(">=")
    assert number(python(kind)) >= number(least)


def test_the_cpus_python_is_the_workflows_and_the_one_of_the_checksums() -> None:
    jobs = yaml.safe_load(WORKFLOW)["jobs"].values()
    set_up = [step["with"]["python-version"] for job in jobs for step in job["steps"]
              if step.get("uses", "").startswith("actions/setup-python")]  # fmt: skip
    assert {*set_up, python("cpu")} == {"3.11"}
    page = (ROOT / "docs/artifact.md").read_text()
    assert "torch's is of CPython 3.11" in page


def test_the_cuda_images_toolkit_is_of_the_pinned_packages_generation() -> None:
    image = of("cuda")[0].words
    (toolkit,) = re.findall(r"cuda:(\d+)\.", image)
    pinned = (ROOT / PINNED["cuda"]).read_text()
    (packages,) = re.findall(r"^cuda-python==(\d+)\.", pinned, re.MULTILINE)
    (runtime,) = re.findall(r"^nvidia-cuda-runtime==(\d+)\.", pinned, re.MULTILINE)
    assert toolkit == packages == runtime


@pytest.mark.parametrize("kind", FILES)
def test_versions_that_the_project_fixes_are_those_of_the_list(kind: str) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = settings["project"]["optional-dependencies"].values()
    named = [each for extra in extras for each in extra] + settings["build-system"]["requires"]
    fixed = {each.replace("_", "-") for each in named if re.fullmatch(r"[\w.-]+==[\d.]+", each)}
    listed = (ROOT / PINNED[kind]).read_text().replace("_", "-").splitlines()
    at = {each.partition("==")[0]: each for each in listed if "==" in each}
    assert {"torch", "vllm", "mypy"} <= {each.partition("==")[0] for each in fixed}
    assert not {each for each in fixed if at.get(each.partition("==")[0], each) != each}


def test_an_image_gets_nothing_that_was_made_here_and_the_workflow_builds_it() -> None:
    left_out = {*(ROOT / ".dockerignore").read_text().split()}  # podman reads it, too
    made_here = (ROOT / ".gitignore").read_text().split()
    for pattern in made_here:
        name = pattern.strip("/")
        assert {name, f"**/{name}"} & left_out, name
    assert ".git" not in left_out, "runs in the image tell their revision"
    assert run_by(WORKFLOW, "container") == [
        "docker build --tag elastic-harness --file Containerfile .",
        "docker run --rm elastic-harness make smoke",
    ]
