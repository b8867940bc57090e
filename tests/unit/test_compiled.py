"""What is compiled is used while its sources are those it was made of, and never after."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest

from harness import compiled
from harness.compiled import sha256, why_python
from harness.compiled.__main__ import GROUPS, described

SOURCE, POLICY = "harness/clock.py", "systems/baselines/vllm.py"


def built(content: str) -> dict[str, Any]:
    def group(needs: list[str], sources: dict[str, str]) -> dict[str, Any]:
        return {"needs": needs, "sources": sources, "modules": {}}

    kernel, policy = group([], {SOURCE: content}), group(["kernel"], {POLICY: sha256(POLICY)})
    soabi = sysconfig.get_config_var("SOABI")
    return {"folder": "f", "soabi": soabi, "groups": {"kernel": kernel, "vllm": policy}}


def test_groups_import_what_they_need_alone() -> None:
    """Else a group would call the binaries of one that is Python for its changed source."""
    groups = described(GROUPS)
    group_of = {
        path.removesuffix(".py").replace("/", "."): name
        for name, paths in GROUPS.items()
        for path in paths
    }
    for name, paths in GROUPS.items():
        for path in paths:
            nodes = ast.walk(ast.parse(Path(path).read_text()))
            imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
            found = {group_of[str(module)] for module in imported if module in group_of}
            assert found <= {name, *groups[name]["needs"]}, path


def imports_of(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    found = {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    return found | {a.name for node in nodes if isinstance(node, ast.Import) for a in node.names}


def test_no_compiled_coroutine_waits_within_an_except() -> None:
    """mypyc's coroutines crash Python where they are closed while they wait there."""
    waits = [
        f"{path}:{each.lineno}"
        for of in GROUPS.values()
        for path in of
        for handler in ast.walk(ast.parse((compiled.PROJECT / path).read_text()))
        if isinstance(handler, ast.ExceptHandler)
        for each in ast.walk(handler)
        if isinstance(each, ast.Await | ast.AsyncFor | ast.AsyncWith)
    ]
    assert waits == []


def test_a_wheel_is_built_with_all_that_types_are_taken_from() -> None:
    """Else mypyc finds an import that it does not know, and a wheel is Python alone."""
    left, seen, others = (
        [path for paths in GROUPS.values() for path in paths],
        set[str](),
        set[str](),
    )
    while left:
        path = left.pop()
        if path in seen:
            continue
        seen.add(path)
        for module in imports_of(Path(path)):
            file = Path(module.replace(".", "/"))
            files = [
                each for each in (file.with_suffix(".py"), file / "__init__.py") if each.is_file()
            ]
            left += map(str, files)
            if not files:
                others.add(module.partition(".")[0])
    project = tomllib.loads(Path("pyproject.toml").read_text())
    untyped = {
        name.removesuffix(".*") for name in project["tool"]["mypy"]["overrides"][0]["module"]
    }
    required = project["build-system"]["requires"]
    brought = {"mypy_extensions", "_typeshed"}  # by mypy
    stubs = {"yaml"} if any(name.startswith("types-PyYAML") for name in required) else set[str]()
    assert others - set(sys.stdlib_module_names) - untyped - brought <= {*required, *stubs}
    pinned = {name for name in required if "==" in name}
    assert "mypy" in {name.partition("==")[0] for name in pinned}
    assert pinned <= set(Path("requirements/cpu.txt").read_text().splitlines())


def test_a_changed_kernel_makes_all_of_it_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARNESS_PURE", raising=False)
    assert why_python(built(sha256(SOURCE))) == {}
    assert why_python(built("another")) == {"": f"changed since the build: {SOURCE}"}
    gone = built("x")
    gone["groups"]["kernel"]["sources"] = {"harness/gone.py": "x"}
    assert why_python(gone) == {"": "changed since the build: harness/gone.py"}


def test_a_changed_policy_leaves_the_kernel_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARNESS_PURE", raising=False)
    index = built(sha256(SOURCE))
    index["groups"]["vllm"]["sources"] = {POLICY: "another"}
    assert why_python(index) == {"vllm": f"changed since the build: {POLICY}"}


def test_python_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_PURE", "1")
    assert why_python(built(sha256(SOURCE))) == {"": "HARNESS_PURE=1"}


def test_what_was_built_for_another_python_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARNESS_PURE", raising=False)
    other = built(sha256(SOURCE)) | {"soabi": "cpython-30"}
    assert why_python(other) == {"": "built for another Python"}


SEEN = """
import harness.compiled
import harness.clock, systems.kunserve.server, systems.serverlessllm.paper
print(harness.compiled.state())
for module in (harness.clock, systems.kunserve.server, systems.serverlessllm.paper):
    print(module.__file__.rsplit(".")[-1], hasattr(module, "EDITED"))
"""


def seen(checkout: Path) -> list[str]:
    """What a process says of it: its state, then of the kernel, a policy and another one."""
    env = {k: v for k, v in os.environ.items() if k != "HARNESS_PURE"}
    command = [sys.executable, "-c", SEEN]
    return subprocess.run(
        command, cwd=checkout, env=env, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.splitlines()


def edit(path: Path) -> None:
    with path.open("a") as source:
        source.write("EDITED = True\n")


def test_an_edit_takes_effect_in_the_next_run(tmp_path: Path) -> None:
    """In a copy of this checkout with what was built here."""
    if not (compiled.FOLDER / compiled.INDEX).is_file():
        pytest.skip("nothing is compiled here: `make setup` does, with a C compiler")
    for folder in ("harness", "systems", "build/compiled"):
        ignored = shutil.ignore_patterns("__pycache__", "mypy_cache", "*.work")
        shutil.copytree(compiled.PROJECT / folder, tmp_path / folder, ignore=ignored)
    before = seen(tmp_path)
    if before[0] != "compiled":
        pytest.skip(before[0])
    assert before[1:] == ["so False"] * 3
    edit(tmp_path / "systems/kunserve/server.py")
    after = seen(tmp_path)
    why = "changed since the build: systems/kunserve/server.py"
    assert after == [f"compiled; kunserve in Python: {why}", "so False", "py True", "so False"]
    edit(tmp_path / SOURCE)
    state, *modules = seen(tmp_path)
    assert state.startswith(f"Python: changed since the build: {SOURCE}")
    assert modules == ["py True", "py True", "py False"]


def test_a_system_imported_before_anything_else_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would be Python beside binaries that have classes of the same names."""
    monkeypatch.delenv("HARNESS_PURE", raising=False)
    index = compiled.FOLDER / compiled.INDEX
    if not index.is_file():
        pytest.skip("nothing is compiled here: `make setup` does, with a C compiler")
    if {"", "aqua"} & why_python(json.loads(index.read_bytes())).keys():
        pytest.skip("AQUA's sources have changed since they were compiled: `make setup`")
    code = "import systems.aqua.prompt as first\nprint(first.__file__)"
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert not said.strip().endswith(".py")
