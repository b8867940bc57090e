"""The dependency rule: who may import whom, read from the source."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SYSTEMS_MAY = {
    "block_pool", "clock", "cluster", "errors", "hardware", "placement", "pool", "request",
    "system",
}  # fmt: skip
ONLY_IN = {
    "torch": ("harness/engine/",),
    "vllm": ("harness/drivers/", "tests/"),
    "wandb": ("harness/tracking.py",),
    "pynvml": ("harness/gpu_monitor.py",),
    "aiohttp": ("harness/drivers/", "tests/"),
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
            if name.split(".")[0] == "harness":
                assert name.split(".")[1] in SYSTEMS_MAY, f"{path} imports {name}"
            assert name.split(".")[0] not in ("workloads", "plots", "time", "torch"), path


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
