"""Which questions about CUDA the code asks, and whether tests have given a GPU's answer to each.

    QUESTIONS=FILE python -m pytest -p tests.cuda_questions TESTS      writes what was seen to FILE

A question is an expression by which code tells a GPU from a CPU: `on_gpu(…)`, `is_available()` of
torch.cuda, `.is_cuda`, a comparison with "cuda" or "cpu". Beside it stands what is CUDA's alone:
`torch.cuda.…`, "cuda", "nccl", `.pin_memory`. In a file that uses torch.cuda each `if` is a
question too, whose answers must both be given. As a plugin this module has the harness imported
with each of these wrapped in a call that notes it. What another file makes of an answer is not
followed.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("harness", "systems", "workloads", "plots")
ALONE = ("cuda", "nccl")  # words that are a GPU's alone
NOTE = "_note_about_cuda"
BOTH = ("True", "False")


class Questions(ast.NodeTransformer):
    """Wraps the questions of a file. `found`: what must be seen, by the text of its `asked`."""

    def __init__(self, name: str, tree: ast.Module) -> None:
        self._name, self.found = name, list[str]()
        self._aliases = _aliases(tree)
        nodes = list(ast.walk(tree))
        self._uses_cuda = any(isinstance(n, ast.expr) and self._is_cudas(n) for n in nodes)
        self._tests = [n.test for n in nodes if isinstance(n, ast.If | ast.IfExp | ast.While)]

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr):
            answers = self._of_gpu(node)
            if answers is None and self._uses_cuda and node in self._tests:
                answers = BOTH
            if answers is not None:
                return self._wrapped(node, answers)
        if isinstance(node, ast.MatchValue) and _word(node.value):
            raise SyntaxError(f"{self._name}:{node.lineno}: ask by `if`, which can be counted")
        return super().visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return node

    def _of_gpu(self, node: ast.expr) -> tuple[str, ...] | None:
        """What a GPU answers; (): whatever it is; None: it is no question."""
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            words = [side.value for side in sides if isinstance(side, ast.Constant)]
            if len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq | ast.NotEq):
                equal = isinstance(node.ops[0], ast.Eq)
                for word, is_gpus in (("cuda", True), ("cpu", False)):
                    if word in words:
                        return (str(is_gpus == equal),)
            return None
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            asks = name == "on_gpu" or self._is_cudas(node.func, "is_available")
            return ("True",) if asks else None
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            if node.attr == "is_cuda":
                return ("True",)
            return () if self._is_cudas(node) or node.attr == "pin_memory" else None
        return () if _word(node) else None

    def _is_cudas(self, node: ast.expr, name: str | None = None) -> bool:
        if not isinstance(node, ast.Attribute) or name not in (None, node.attr):
            return False
        return ast.unparse(node.value) in self._aliases

    def _wrapped(self, node: ast.expr, answers: tuple[str, ...]) -> ast.expr:
        asked = f"{self._name}:{node.lineno}: {ast.unparse(node)}"
        self.found += [f"{asked} -> {answer}" for answer in answers] if answers else [asked]
        whole = isinstance(node, ast.Constant) or (
            len(answers) == 1 and isinstance(node, ast.Compare)
        )
        inner: Any = node if whole else self.generic_visit(node)
        note = ast.Name(NOTE, ast.Load())
        call = ast.Call(note, [ast.Constant(asked), ast.Constant(bool(answers)), inner], [])
        return ast.fix_missing_locations(ast.copy_location(call, node))


def _word(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in ALONE


def _aliases(tree: ast.Module) -> set[str]:
    """How the file calls torch.cuda."""
    names = {"torch.cuda"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if ast.unparse(node.value) == "torch.cuda":
                names |= {ast.unparse(target) for target in targets}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            of = "torch." if getattr(node, "module", None) == "torch" else ""
            names |= {n.asname or n.name for n in node.names if of + n.name == "torch.cuda"}
    return names


def questions(text: str, name: str) -> tuple[ast.Module, list[str]]:
    """The text with its questions wrapped, and what must be seen."""
    tree = ast.parse(text)
    wrapped = Questions(name, tree)
    return wrapped.visit(tree), wrapped.found


def sources() -> Sequence[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        text, name = Path(path).read_text(), str(Path(path).relative_to(ROOT))
        return compile(questions(text, name)[0], path, "exec", dont_inherit=True)


class _Finder(PathFinder):
    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        found = super().find_spec(fullname, path, target)
        if found is not None and isinstance(found.loader, SourceFileLoader):
            found.loader = _Loader(found.loader.name, found.loader.path)
        return found


_SEEN: set[str] = set()


def _note(asked: str, is_question: bool, value: object) -> object:
    _SEEN.add(f"{asked} -> {bool(value)}" if is_question else asked)
    return value


def pytest_unconfigure(config: pytest.Config) -> None:
    if "QUESTIONS" in os.environ:
        Path(os.environ["QUESTIONS"]).write_text(json.dumps(sorted(_SEEN)))


if "QUESTIONS" in os.environ:  # before any conftest imports the harness
    setattr(builtins, NOTE, _note)
    sys.meta_path.insert(0, _Finder)
