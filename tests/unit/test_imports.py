"""The dependency rule: who may import whom, read from the source."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SYSTEMS_MAY = (
    "clock", "cluster", "configuration.checks", "configuration.config", "cost.hardware", "device",
    "elastic", "errors", "files", "model_spec", "placement", "pooled", "request", "system",
)  # fmt: skip
SYSTEMS_SHARE = ("baselines", "serving")  # what any system may import of other systems
BUILDS_ON = {"llumnix": ("kunserve",)}  # beside these: KunServe's baseline, on KunServe's servers
# Where a policy would ask which engine it runs on: the devices offer the same on all of them.
ASKS_FOR_THE_ENGINE = re.compile(
    r"isinstance\(.*Loop\)|tables is (not )?None|places_matter|\bsimulated\b"
)
ONLY_IN = {
    "torch": ("harness/engine/", "systems/aqua/plugin/"),
    "vllm": ("harness/drivers/", "systems/aqua/plugin/", "tests/"),
    "wandb": ("harness/running/tracking.py",),
    "pynvml": ("harness/records/gpu_monitor.py",),
    "httptools": ("harness/drivers/",),
    "uvloop": ("harness/drivers/", "harness/selftest/golden_server.py"),
    "datasets": ("workloads/hub.py",),
    "tokenizers": ("workloads/text.py", "tests/"),
    "huggingface_hub": ("workloads/",),
    "fastapi": ("systems/aqua/coordinator/",),
    "uvicorn": ("systems/aqua/coordinator/",),
}


def imports(path: Path) -> set[str]:
    """Every module that `path` imports, absolute."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def sources(package: str) -> list[Path]:
    found = sorted((ROOT / package).rglob("*.py"))
    assert found, package
    return found


def test_systems_see_the_device_seam_and_nothing_else_of_the_harness() -> None:
    for path in sources("systems"):
        for name in imports(path):
            if path == ROOT / "systems/__init__.py":  # so that compiled modules are found
                assert name == "harness"
            elif name.split(".")[0] == "harness":
                inside = name.removeprefix("harness.")
                allowed = any(f"{inside}.".startswith(f"{each}.") for each in SYSTEMS_MAY)
                assert allowed, f"{path} imports {name}"
            top = name.split(".")[0]
            assert top not in ("workloads", "plots"), path
            if "plugin" not in path.parts:  # which runs inside a server of its own
                assert top not in ("time", "torch"), path


def test_systems_share_the_baselines_and_build_on_one_another_in_one_direction() -> None:
    graph: dict[str, set[str]] = {}
    for path in sources("systems"):
        system = path.relative_to(ROOT / "systems").parts[0]
        may = {system, *SYSTEMS_SHARE, *BUILDS_ON.get(system, ())}
        for name in imports(path):
            top, _, inside = name.partition(".")
            if top == "systems" and inside:
                other = inside.split(".")[0]
                assert other in may, f"{path} imports {name}"
                if other != system:
                    graph.setdefault(system, set()).add(other)
    assert graph["llumnix"] == {"kunserve", "serving"}
    assert "serving" not in graph  # the kit knows no system
    assert not circle(graph)


def test_no_policy_asks_which_engine_it_runs_on() -> None:
    for path in sources("systems"):
        code = ast.unparse(without_docstrings(ast.parse(path.read_text())))
        found = ASKS_FOR_THE_ENGINE.search(code)
        assert found is None, f"{path}: {found and found[0]}"
        for name in imports(path):
            assert not f"{name}.".startswith(("harness.sim.", "harness.engine.")), path


def without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [each for each in node.body if not is_text(each)] or [ast.Pass()]
    return tree


def is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def test_the_harness_imports_no_system_no_workload_no_plot() -> None:
    for path in sources("harness"):
        tops = {name.split(".")[0] for name in imports(path)}
        assert not tops & {"systems", "workloads", "plots", "tests"}, path


def test_heavy_packages_are_imported_in_one_place() -> None:
    for package in ("harness", "systems", "workloads", "plots"):
        for path in sources(package):
            relative = path.relative_to(ROOT).as_posix()
            for name in {name.split(".")[0] for name in imports(path)} & set(ONLY_IN):
                assert relative.startswith(ONLY_IN[name]), f"{relative} imports {name}"


def test_no_file_is_longer_than_four_hundred_lines() -> None:
    for package in ("harness", "systems", "workloads", "plots", "tests"):
        for path in sources(package):
            assert len(path.read_text().splitlines()) <= 400, path


def test_each_of_these_words_names_one_class() -> None:
    words = {"Point", "Link", "Profile", "Estimator", "Worker", "Decoder"}
    seen: dict[str, Path] = {}
    for package in ("harness", "systems", "workloads", "plots"):
        for path in sources(package):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and node.name in words:
                    assert seen.setdefault(node.name, path) == path, f"two classes {node.name}"


def modules() -> dict[str, Path]:
    tops = ("harness", "systems", "workloads", "plots")
    files = [path.relative_to(ROOT) for top in tops for path in sources(top)]
    return {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def arrows() -> dict[str, set[str]]:
    """Module -> the modules it imports, for type checking too."""
    known = modules()
    return {
        name: {each for each in imports(ROOT / path) if each in known and "." in each} - {name}
        for name, path in known.items()
    }


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Some nodes that can reach one another; none: []."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_through_others() -> None:
    assert not circle(arrows())


def test_no_room_of_the_harness_imports_itself_through_others() -> None:
    """Rooms are the packages of harness/; the core stays on the top floor and is in none."""
    graph: dict[str, set[str]] = {}
    for name, found in arrows().items():
        for each in found if "." in name else ():
            rooms = [module.split(".")[1] for module in (name, each)]
            inside = all((ROOT / "harness" / room).is_dir() for room in rooms)
            if inside and name.startswith("harness.") and rooms[0] != rooms[1]:
                graph.setdefault(rooms[0], set()).add(rooms[1])
    assert graph["experiments"]
    assert not circle(graph)


def test_the_harness_has_few_rooms_and_few_modules_in_none() -> None:
    rooms = [path for path in (ROOT / "harness").iterdir() if (path / "__init__.py").is_file()]
    loose = {path.name for path in (ROOT / "harness").glob("*.py")} - {"__init__.py", "__main__.py"}
    assert 0 < len(rooms) <= 35
    assert 0 < len(loose) <= 12, sorted(loose)


def test_a_circle_would_be_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
