"""How much the signatures say: few hints are ``Any``, few lines ask the checker to look away."""

import ast
from collections.abc import Iterator
from pathlib import Path

import symdnn

SOURCES = sorted(Path(symdnn.__file__).parent.rglob("*.py"))
#: The goal is 0.15.
MAX_ANY = 0.22
MAX_IGNORED_LINES = 250


def hints(tree: ast.Module) -> Iterator[ast.expr]:
    """Annotations of parameters, results and assignments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield node.annotation
        elif isinstance(node, ast.FunctionDef) and node.returns is not None:
            yield node.returns


def test_few_hints_are_any():
    found = [h for path in SOURCES for h in hints(ast.parse(path.read_text(encoding="utf-8")))]
    names = [{n.id for n in ast.walk(h) if isinstance(n, ast.Name)} for h in found]
    assert len(found) > 20_000
    assert sum("Any" in n for n in names) / len(found) < MAX_ANY


def test_few_lines_are_ignored():
    lines = [line for path in SOURCES for line in path.read_text(encoding="utf-8").splitlines()]
    assert sum("# type: ignore" in line for line in lines) < MAX_IGNORED_LINES
