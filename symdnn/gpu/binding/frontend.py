"""cuDNN's graph API by the package ``nvidia-cudnn-frontend``, if it fits the loaded cuDNN.

The package opens cuDNN by rules of its own. While it is imported, ``LD_LIBRARY_PATH`` points it to
the library that symdnn has loaded. If the process then has cuDNN libraries of two folders, the
graph API stays off: the parts of two versions do not work together. The first call imports it.

Only the package's C++ module is used. The Python layer above it ranks kernels of its own among
cuDNN's engines, and takes a ``cudnnHandle_t`` only in a wrapper.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from symdnn.detect import mapped_cudnn
from symdnn.errors import CudnnError
from symdnn.gpu.binding import cudnn_library

PACKAGE = "nvidia-cudnn-frontend"
_ADVICE = f"pip install {PACKAGE}"

# Methods of a graph that symdnn calls. 1.32 has all; an older or a later package may lack some.
_METHODS = (
    "tensor", "conv_fprop", "conv_dgrad", "conv_wgrad", "validate", "build_operation_graph",
    "create_execution_plans", "create_execution_plan", "get_execution_plan_count",
    "get_plan_name_at_index", "get_engine_and_knobs_at_index", "get_workspace_size_plan_at_index",
    "get_behavior_notes_for_plan_at_index", "build_plan_at_index", "deselect_numeric_notes",
    "deselect_workspace_greater_than", "_execute_plan_at_index",
)  # fmt: skip
_NAMES = ("data_type", "convolution_mode", "heur_mode", "knob_type", "numerical_note")

_lock = threading.RLock()
_problem: str | None = None  # None until the package was imported, "" if it can be used


def unavailable() -> str:
    """Why cuDNN's graph API can't be used here; ``""`` where it can. The first call imports it."""
    global _problem
    with _lock:
        if _problem is None:
            try:
                library = cudnn_library.library()
            except CudnnError as error:  # not remembered: another flag may help next time
                return f"no cuDNN: {str(error).splitlines()[0]}"
            _problem = _import_problem(library)
        return _problem


def version() -> str:
    """The package's version; ``""`` where it is not imported."""
    return str(getattr(sys.modules.get("cudnn"), "__version__", ""))


def compiled() -> Any:
    """The package's C++ module; raises :class:`CudnnError` with the reason where it is off."""
    problem = unavailable()
    if problem:
        raise CudnnError(f"cuDNN's graph API is off: {problem}")
    return _module()


def graph_class() -> Any:
    """The class of a graph, which takes a ``cudnnHandle_t`` as an int."""
    return _graph_class(compiled())


# --- steps ----------------------------------------------------------------------------------------


def _import_problem(library: cudnn_library.CudnnLibrary) -> str:
    folder = Path(next(iter(library.loaded.values()), library.path)).parent
    try:
        with _first_on_library_path(folder):
            importlib.import_module("cudnn")
    except ImportError as error:
        if getattr(error, "name", "") == "cudnn":
            return f"the package {PACKAGE} is not installed: {_ADVICE}"
        return f"{PACKAGE} can't be imported: {error}"
    except Exception as error:  # raised by its C++ module while it is loaded
        return f"{PACKAGE} can't be imported: {type(error).__name__}: {error}"
    return _mixed(folder) or _missing_names() or _other_version(library.version)


@contextlib.contextmanager
def _first_on_library_path(folder: Path) -> Iterator[None]:
    """Put ``folder`` first in ``LD_LIBRARY_PATH``: the package opens cuDNN from its first folder.

    The dynamic loader is not affected: it read the variable when the process began.
    """
    name = "LD_LIBRARY_PATH"
    before = os.environ.get(name)
    os.environ[name] = os.pathsep.join([str(folder), *([before] if before else [])])
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _mixed(own: Path) -> str:
    """The problem if this process has cuDNN's files from more than one folder, else ``""``."""
    folders = {str(Path(c.path).parent.resolve()) for c in mapped_cudnn()} | {str(own.resolve())}
    others = sorted(folders - {str(own.resolve())})
    if not others:
        return ""
    return (
        f"{PACKAGE} has opened a second cuDNN, in {', '.join(others)}, beside {own}, which symdnn "
        "uses. Use symdnn before what imports it, or name one of them by the flag dnn.library_path"
    )


def _missing_names() -> str:
    """Names that another version of the package may lack, as a problem; ``""`` if it has all."""
    module = _module()
    missing = [n for n in _NAMES if not hasattr(module, n)]
    graph = _graph_class(module)
    missing += [n for n in _METHODS if not hasattr(graph, n)]
    if not missing:
        return ""
    return (
        f"{PACKAGE} {version()} lacks {', '.join(missing)}; symdnn was tested with 1.32: {_ADVICE}"
    )


def _other_version(ours: tuple[int, int, int]) -> str:
    """The problem if the package found no cuDNN, or one of another version than ours."""
    try:
        number = int(_module().backend_version())
    except Exception as error:  # it opened no library, or one that lacks symbols
        return f"{PACKAGE} {version()} does not reach cuDNN: {error}"
    theirs = (number // 10000, number % 10000 // 100, number % 100)
    if theirs == ours:
        return ""
    return f"{PACKAGE} uses cuDNN {_dotted(theirs)}, symdnn {_dotted(ours)}"


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _module() -> Any:
    return getattr(sys.modules["cudnn"], "_pybind_module", None)


def _graph_class(module: object) -> Any:
    """The C++ class of a graph, which was named ``pygraph`` up to version 1.26 of the package."""
    return getattr(module, "backend_graph", None) or getattr(module, "pygraph", None)
