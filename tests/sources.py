"""The package's source files and what they consist of, read once in a process."""

import ast
import gc
from functools import cache
from pathlib import Path

import symdnn

__all__ = ["PACKAGE", "SOURCES", "trees"]

PACKAGE = Path(symdnn.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))


@cache
def trees() -> dict[Path, ast.Module]:
    """Millions of objects that stay: to search them for garbage takes longer than to make them."""
    gc.disable()
    try:
        return {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}
    finally:
        gc.freeze()
        gc.enable()
