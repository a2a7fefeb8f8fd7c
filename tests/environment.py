"""The environment of programs that tests start."""

import os
from pathlib import Path

__all__ = ["ROOT", "environment", "python_path"]

ROOT = Path(__file__).parents[1]


def python_path(*more):
    """``PYTHONPATH`` with this repository first, then what it has now, where packages may be."""
    return os.pathsep.join(filter(None, [str(ROOT), *map(str, more), os.environ.get("PYTHONPATH")]))


def environment(**more):
    """This process's environment for a program that imports this repository."""
    return {**os.environ, "PYTHONPATH": python_path(), **more}
