"""No code that only tests run.

Every function, class, method, property and module constant of the four packages is used by code
that runs; a figure of a paper is, as it is found by its name. A name at the top of a module is used
through its module, a method wherever an attribute of its name is read. A string that is a name uses
it, too. What a definition uses counts only if the definition is used itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
JUDGED = ("harness", "systems", "workloads", "plots")
BESIDE = ("docs",)  # whose uses count: users run its examples
TEXTS = ("conf/**/*.yaml", "plots/page/*.html", "Makefile", "pyproject.toml")
FIGURES = {  # what describes one, which is then found by its name
    "plots.figure:PaperFigure", "plots.figure:picture", "plots.figure:text",
    "plots.aqua.bursts:burst", "plots.matrix.figures:map_of",
}  # fmt: skip
ALLOWED = {  # what a library calls
    "harness.compiled:Finder.find_spec": "importlib",
    "harness.drivers.connections:Connection.connection_made": "asyncio",
    "harness.drivers.connections:Connection.data_received": "asyncio",
    "harness.drivers.exchange:Exchange.on_*": "httptools",
    "harness.experiments.sweep:SweepTable.on_multirun_*": "hydra",
    "harness.running.run:NoPandas.find_spec": "importlib",
    "systems.aqua.plugin.connector:AquaConnector.*": "vLLM",
    "systems.aqua.plugin.counters:Count*.*": "vLLM",
    "systems.aqua.plugin.scheduler:AquaScheduler.*": "vLLM",
}


class Definition(NamedTuple):
    """`key`: module:name or module:Class.method, or the module alone, for what its import runs.
    `uses`: module:name for a name at the top of a module, .name for an attribute."""

    key: str
    uses: frozenset[str]

    @property
    def needs(self) -> tuple[str, ...]:
        """What must be used so that this is; (): it runs in any case."""
        module, _, name = self.key.partition(":")
        owner, _, method = name.rpartition(".")
        if not name or name.startswith("__") or not module.startswith(JUDGED):
            return ()
        if not owner:
            return (self.key,)
        called = any(fnmatch(self.key, pattern) for pattern in ALLOWED)
        special = called or method.startswith("__")
        return (f"{module}:{owner}",) if special else (f"{module}:{owner}", f".{method}")


def imported(tree: ast.AST, modules: Iterable[str]) -> dict[str, str]:
    """Local name -> the module that it stands for, or module:name."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.asname or each.name: each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            for each in node.names:
                whole = f"{node.module}.{each.name}"
                name = whole if whole in modules else f"{node.module}:{each.name}"
                found[each.asname or each.name] = name
        elif isinstance(node, ast.Assign) and (name := dotted(node.value)) in modules:
            found |= {dotted(each): name for each in node.targets}
    return found


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    match node:
        case ast.Call(func=ast.Name(id="import_module"), args=[ast.Constant(value=str(module))]):
            return module
    return node.id if isinstance(node, ast.Name) else ""


def used(nodes: Iterable[ast.AST], module: str, known: dict[str, str]) -> Iterator[str]:
    for node in (each for top in nodes for each in ast.walk(top)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield known.get(node.id, f"{module}:{node.id}")
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield f".{node.attr}"
            name = dotted(node.value)
            yield f"{known.get(name, name)}:{node.attr}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from named(node.value)
            for word in re.findall(r"\w+", node.value) if " " not in node.value else ():
                yield known.get(word, f"{module}:{word}")  # an annotation


def named(text: str) -> Iterator[str]:
    """The names that a text has: of attributes, and whole ones, with their modules."""
    for word in re.findall(r"[\w.:]+", text) if " " not in text.strip() else ():
        module, _, name = word.replace(":", ".").rpartition(".")
        yield f"{module}:{name}"
        yield f".{name}"


def is_figure(made_by: Iterable[ast.expr], module: str, known: dict[str, str]) -> bool:
    calls = [dotted(each.func) for each in made_by if isinstance(each, ast.Call)]
    return any(known.get(name, f"{module}:{name}") in FIGURES for name in calls)


def definitions(module: str, text: str, modules: Iterable[str]) -> Iterator[Definition]:
    tree = ast.parse(text)
    known, running = imported(tree, modules), list[ast.AST]()

    def define(name: str, nodes: Iterable[ast.AST]) -> Definition:
        return Definition(f"{module}:{name}", frozenset(used(nodes, module, known)))

    for node in tree.body:
        match node:
            case ast.FunctionDef(decorator_list=made_by) if is_figure(made_by, module, known):
                running.append(node)
            case ast.Assign(value=made) if is_figure([made], module, known):
                running.append(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield define(node.name, [node])
            case ast.ClassDef():
                rest = list(ast.iter_child_nodes(node))
                for each in node.body:
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                        yield define(f"{node.name}.{each.name}", [each])
                        rest.remove(each)
                yield define(node.name, rest)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield define(name, [node])
            case ast.Import() | ast.ImportFrom():
                pass
            case _:
                running.append(node)
    yield Definition(module, frozenset(used(running, module, known)))


def dead(found: Iterable[Definition], live: set[str]) -> set[str]:
    """The keys of those that nothing uses but one another; `live`: what is used in any case."""
    left = list(found)
    while True:
        woken = [each for each in left if live.issuperset(each.needs)]
        if not woken:
            return {each.key for each in left}
        live = live.union(*[each.uses for each in woken])
        left = [each for each in left if each not in woken]


@cache
def everything() -> tuple[list[Definition], set[str]]:
    files = [path for top in (*JUDGED, *BESIDE) for path in sorted((ROOT / top).rglob("*.py"))]
    sources = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in [*files, ROOT / "setup.py"]
    }
    found = [
        each
        for module, path in sources.items()
        for each in definitions(module, path.read_text(), sources)
    ]
    texts = [path.read_text() for pattern in TEXTS for path in ROOT.glob(pattern)]
    return found, {
        name for text in texts for word in text.split() for name in named(word.strip("'\""))
    }


def test_what_is_defined_runs() -> None:
    assert dead(*everything()) == set()


def test_what_a_library_calls_is_there() -> None:
    keys = [each.key for each in everything()[0]]
    for pattern in ALLOWED:
        assert any(fnmatch(key, pattern) for key in keys), pattern


def test_what_nothing_runs_is_found() -> None:
    found = definitions(
        "harness.made_up",
        "class Kept:\n"
        "    def read(self): return LIMIT\n"
        "    def unread(self): return helper()\n"
        "def helper(): return helper()\n"
        "LIMIT = 3\n"
        "def main(): return Kept().read()\n"
        "if __name__ == '__main__': main()\n",
        ["harness.made_up"],
    )
    assert dead(found, set()) == {"harness.made_up:Kept.unread", "harness.made_up:helper"}


def test_what_draws_a_figure_runs_and_its_neighbour_does_not() -> None:
    source = (
        "from plots.figure import PaperFigure, picture\n"
        "@picture('a', table)\n"
        "def drawn(): return table()\n"
        "def table(): return 1\n"
        "made = PaperFigure('b', table, drawn)\n"
        "def left(): return table()\n"
    )
    found = definitions("plots.made_up", source, ["plots.made_up"])
    assert dead(found, set()) == {"plots.made_up:left"}
