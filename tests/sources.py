"""The package's source files and their syntax trees, read once in a process; loaded programs."""

import ast
import gc
import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

import symdnn

__all__ = ["PACKAGE", "SOURCES", "program", "trees"]

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


def program(path: Path) -> ModuleType:
    """A file that is in no package as a module, with ``__name__`` its name without ending."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
