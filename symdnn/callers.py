"""Which code called: for warnings, and for the origin of a flag's value."""

from __future__ import annotations

import itertools
import os
import sys
from typing import Any

__all__ = ["code_origin", "depth_of_caller", "depth_of_importer", "is_command", "is_imported_by"]


def depth_of_caller() -> int:
    """The ``stacklevel``, counted from our caller, of the first frame outside of its module."""
    depth, frame = 0, sys._getframe(1)
    module = frame.f_globals.get("__name__")
    while frame.f_back is not None and frame.f_globals.get("__name__") == module:
        depth, frame = depth + 1, frame.f_back
    return depth + 1


def depth_of_importer() -> int:
    """The ``stacklevel`` of the first frame outside of symdnn and of Python's import system."""
    package, depth, frame = os.path.dirname(__file__), 0, sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if not name.startswith((package, "<frozen importlib")):
            break
        depth, frame = depth + name.startswith(package), frame.f_back  # others are not counted
    return depth + 1


def is_imported_by(package: str) -> bool:
    """Whether this runs because a module of ``package`` is being imported."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            name = frame.f_locals.get("name", "")
            if isinstance(name, str) and name.startswith(package):
                return True
        frame = frame.f_back
    return False


def code_origin() -> str:
    """The file and line of the user's frame that led here, or else the first of symdnn's."""
    package = os.path.dirname(__file__) + os.sep
    frame: Any = sys._getframe(2)
    found = frame
    while frame is not None:
        helper = frame.f_globals.get("__name__") in ("contextlib", "functools")
        if not helper and not frame.f_code.co_filename.startswith((package, "<frozen ")):
            found = frame
            break
        frame = frame.f_back
    return f"code at {found.f_code.co_filename}:{found.f_lineno}"


def is_command() -> bool:
    """Whether this process is ``symdnn``, ``python -m symdnn`` or ``python -m symdnn.doctor``."""
    line = sys.orig_argv
    modules = [after for option, after in itertools.pairwise(line) if option == "-m"]
    scripts = [os.path.basename(word) for word in line[:2]]
    return "symdnn" in scripts or modules[:1] in (["symdnn"], ["symdnn.doctor"])
