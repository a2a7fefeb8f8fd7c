"""cuDNN's graph API: the package ``nvidia-cudnn-frontend``, when it is there and fits our cuDNN.

The package opens cuDNN by rules of its own. It is led to the library that symdnn has loaded;
afterwards the process must still have cuDNN of one folder only, else the graph API stays off, for
the parts of two versions do not work together. Nothing is imported before someone asks.

Its module in C++ is used, not the layer in Python above it: that ranks kernels of its own among
cuDNN's engines, and takes a ``cudnnHandle_t`` only wrapped.
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

__all__ = ["PACKAGE", "compiled", "graph_class", "unavailable", "version"]

PACKAGE = "nvidia-cudnn-frontend"
_HOW = f"pip install {PACKAGE}"

# What is asked of a graph. Whole in 1.32; an older or a later package may lack some of it.
_METHODS = (
    "tensor", "conv_fprop", "conv_dgrad", "conv_wgrad", "validate", "build_operation_graph",
    "create_execution_plans", "create_execution_plan", "get_execution_plan_count",
    "get_plan_name_at_index", "get_engine_and_knobs_at_index", "get_workspace_size_plan_at_index",
    "get_behavior_notes_for_plan_at_index", "build_plan_at_index", "deselect_numeric_notes",
    "deselect_workspace_greater_than", "_execute_plan_at_index",
)  # fmt: skip
_NAMES = ("data_type", "convolution_mode", "heur_mode", "knob_type", "numerical_note")

_lock = threading.RLock()
_answer: str | None = None  # the reason, once the package was imported


def unavailable() -> str:
    """Why cuDNN's graph API can't be used here; ``""`` where it can. The first call imports it."""
    global _answer
    with _lock:
        if _answer is None:
            try:
                library = cudnn_library.library()
            except CudnnError as error:  # another flag may help: ask again next time
                return f"no cuDNN: {str(error).splitlines()[0]}"
            _answer = _why_not(library)
        return _answer


def version() -> str:
    """The package's version; ``""`` where it is not imported."""
    return str(getattr(sys.modules.get("cudnn"), "__version__", ""))


def compiled() -> Any:
    """The package's module in C++; raises :class:`CudnnError` with the reason where it is off."""
    problem = unavailable()
    if problem:
        raise CudnnError(f"cuDNN's graph API is off: {problem}")
    return _module()


def graph_class() -> Any:
    """The class of a graph, which takes a ``cudnnHandle_t`` as an int."""
    return _graph_class(compiled())


# --- steps ----------------------------------------------------------------------------------------


def _why_not(library: cudnn_library.CudnnLibrary) -> str:
    folder = Path(next(iter(library.loaded.values()), library.path)).parent
    try:
        with _looked_for_first(folder):
            importlib.import_module("cudnn")
    except ImportError as error:
        if getattr(error, "name", "") == "cudnn":
            return f"the package {PACKAGE} is not installed: {_HOW}"
        return f"{PACKAGE} can't be imported: {error}"
    except Exception as error:  # what its module in C++ raises while it is loaded
        return f"{PACKAGE} can't be imported: {type(error).__name__}: {error}"
    return _mixed(folder) or _lacking() or _other_version(library.version)


@contextlib.contextmanager
def _looked_for_first(folder: Path) -> Iterator[None]:
    """While the package is imported: it opens what is in the first folder of this variable.

    The loader itself read the variable when the process began.
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
    """Which folders cuDNN's files in this process are from, where that is more than one."""
    folders = {str(Path(c.path).parent.resolve()) for c in mapped_cudnn()} | {str(own.resolve())}
    others = sorted(folders - {str(own.resolve())})
    if not others:
        return ""
    return (
        f"{PACKAGE} has opened a second cuDNN, in {', '.join(others)}, beside {own}, which symdnn "
        "uses. Use symdnn before what imports it, or name one of them by the flag dnn.library_path"
    )


def _lacking() -> str:
    """What an unknown version of the package does not have."""
    module = _module()
    missing = [n for n in _NAMES if not hasattr(module, n)]
    graph = _graph_class(module)
    missing += [n for n in _METHODS if not hasattr(graph, n)]
    if not missing:
        return ""
    return f"{PACKAGE} {version()} lacks {', '.join(missing)}; symdnn was tested with 1.32: {_HOW}"


def _other_version(ours: tuple[int, int, int]) -> str:
    """What is wrong with the cuDNN that the package found, if it found one."""
    try:
        number = int(_module().backend_version())
    except Exception as error:  # its error where no library was opened, or one without symbols
        return f"{PACKAGE} {version()} does not reach cuDNN: {error}"
    theirs = (number // 10000, number % 10000 // 100, number % 100)
    if theirs == ours:
        return ""
    return f"{PACKAGE} uses cuDNN {_dotted(theirs)}, symdnn {_dotted(ours)}"


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _module() -> Any:
    return getattr(sys.modules["cudnn"], "_pybind_module", None)


def _graph_class(module: Any) -> Any:
    """Up to 1.26 of the package the class in C++ was the public one."""
    return getattr(module, "backend_graph", None) or getattr(module, "pygraph", None)
