"""cuSOLVER and cuBLAS: whether they are there, their handles, and their names of routines."""

from __future__ import annotations

import importlib
import os
from functools import cache
from typing import Any, Protocol

from symdnn.graph.place import Place

#: ``cublasFillMode_t`` of the triangle here, which the libraries see transposed.
FILL = {"lower": 1, "upper": 0}
#: ``cublasOperation_t``.
OPERATION = {"N": 0, "T": 1, "C": 2}
#: ``cusolverEigMode_t``: without and with vectors.
JOB = {False: 0, True: 1}

_LETTERS = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}
#: Routines of complex matrices whose names are not those of real ones.
_COMPLEX = {"syevd": "heevd", "orgqr": "ungqr"}
#: ``cudaDataType_t``, which generic routines (``xsyev_batched``) are told.
DATA_TYPE = {"float32": 0, "float64": 1, "complex64": 4, "complex128": 5}


class Device(Protocol):
    """What a launch's environment has that handles depend on."""

    place: Place
    stream: int


@cache
def problem() -> str:
    """Why the libraries can't be used; empty where they can. No function of them is called."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        importlib.import_module("nvmath.bindings.cusolverDn")
        importlib.import_module("nvmath.bindings.cublas")
        load_nvidia_dynamic_lib("cublas")
        load_nvidia_dynamic_lib("cusolver")
    except Exception as error:  # missing packages, and whatever loading a broken library raises
        line = str(error).partition("\n")[0]
        return f"cuSOLVER can't be used ({line}): pip install nvmath-python nvidia-cusolver"
    return ""


@cache
def solver() -> Any:
    """The binding ``nvmath.bindings.cusolverDn``."""
    return importlib.import_module("nvmath.bindings.cusolverDn")


@cache
def blas() -> Any:
    """The binding ``nvmath.bindings.cublas``."""
    return importlib.import_module("nvmath.bindings.cublas")


def routine(library: Any, dtype: str, name: str, ending: str = "") -> Any:
    """The routine of a dtype, such as ``spotrf``, or with an ending ``spotrf_buffer_size``.

    Generic routines, whose names begin with an x, have one name for all.
    """
    if name.startswith("x"):
        return getattr(library, name + ending)
    own = _COMPLEX.get(name, name) if dtype.startswith("complex") else name
    return getattr(library, _LETTERS[dtype] + own + ending)


#: (process, place, stream, library) -> handle.
_handles: dict[Any, int] = {}


def handle(library: Any, device: Device) -> int:
    """The library's handle on the stream of a launch, created on first use."""
    key = os.getpid(), device.place, device.stream, library.__name__
    if key not in _handles:
        made = library.create()
        library.set_stream(made, device.stream)
        _handles[key] = made
    return _handles[key]


def without_device() -> bool:
    """Whether plans are made for a described device, which no library can be asked about."""
    from symdnn.gpu.device.context import existing_context

    return existing_context() is None
