"""Which CUDA, 12 or 13, the driver, the Python packages and the libraries of this machine are of.

A driver serves libraries of its own CUDA and of older ones. So beside a driver of CUDA 12 those of
CUDA 13 are passed over.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib import metadata

from symdnn.detect import CUDA_MAJORS
from symdnn.gpu.binding import libcuda

_ASK = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).cudnnGetCudartVersion())"
_ANSWER_S = 60  # a cold disk reads cuDNN's parts, too


def served(driver: tuple[int, int] | None = None) -> Sequence[int]:
    """The CUDAs whose libraries the driver serves, by default this machine's; all without one."""
    version = driver or libcuda.version()
    return CUDA_MAJORS if version is None else [n for n in CUDA_MAJORS if n <= version[0]]


def extra() -> str:
    """The extra of symdnn with packages that the driver serves: ``cuda`` or ``cuda12``."""
    newest = max(served(), default=CUDA_MAJORS[-1])
    return "cuda" if newest == CUDA_MAJORS[0] else f"cuda{newest}"


def nvrtc_majors() -> Sequence[int]:
    """The CUDA of cuda-bindings, which loads NVRTC; without that what the driver serves."""
    major = _bindings_major()
    return served() if major is None else [major]


def bindings_problem(driver: tuple[int, int] | None) -> str:
    """Why kernels that cuda-bindings compiles do not run with this driver; ``""`` if they do."""
    major = _bindings_major()
    if major is None or driver is None or major <= driver[0]:
        return ""
    return (
        f"the driver serves CUDA {driver[0]}.{driver[1]}, and cuda-bindings is of CUDA {major}: "
        "update the driver, or pip install 'symdnn[cuda12]'"
    )


@cache
def built_for(path: str) -> int | None:
    """The CUDA that the cuDNN at ``path`` was built for; None where it does not say.

    Asked in a process of its own, because a library cannot be unloaded.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK, path], capture_output=True, text=True, timeout=_ANSWER_S
        )
        return int(done.stdout) // 1000
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None


@cache
def _bindings_major() -> int | None:
    try:
        return int(metadata.version("cuda-bindings").partition(".")[0])
    except metadata.PackageNotFoundError:
        return None
