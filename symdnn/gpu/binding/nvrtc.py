"""CUDA C source to a cubin by NVRTC, kept on disk.

The cache has entries (:mod:`symdnn.disk.store`) named by the hash of source, options and NVRTC's
version. NVRTC needs no toolkit: the sources include no header.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from symdnn.disk import object_file
from symdnn.disk.store import Store
from symdnn.errors import KernelCompileError, SymdnnError

__all__ = ["CUBINS", "compile_cubin", "forget_cubin", "supported_architectures", "version"]

#: fmad would make a value depend on which kernel computes it: two kernels that compute the same
#: x * y + z could disagree in ``eq(x, max(x))``, on which gradients of extremes rest. Without
#: ftz, which is off unless asked for, float32 keeps denormal numbers, as it does on a CPU.
OPTIONS = ("--std=c++17", "--fmad=false")
#: Device code.
CUBINS = Store("cubin", ".cubin", b"symdnn-cubin-2\n")


def compile_cubin(
    source: str,
    capability: tuple[int, int],
    options: Sequence[str] = (),
    folder: Path | None = None,
) -> bytes:
    """The cubin of ``source`` for compute capability ``(9, 0)``: from disk, else compiled.

    ``folder`` is that of the cache (default: in that of the flag ``base_compiledir``). Raises
    :class:`~symdnn.errors.KernelCompileError` with NVRTC's log and the source.
    """
    flags = _flags(capability, options)
    key = _key(source, flags)
    found = CUBINS.get(key, folder, wrong)
    if found is None:
        found = _compile(source, flags)
        CUBINS.put(key, found, folder)
    return found


def forget_cubin(source: str, capability: tuple[int, int], options: Sequence[str] = ()) -> None:
    """Drop what is kept for :func:`compile_cubin`: the driver would not take it."""
    CUBINS.drop(_key(source, _flags(capability, options)))


def wrong(cubin: bytes) -> str:
    """Why this cannot be device code; empty where it can."""
    return object_file.problem(cubin, object_file.CUDA)


def _flags(capability: tuple[int, int], options: Sequence[str]) -> tuple[str, ...]:
    return (f"--gpu-architecture=sm_{capability[0]}{capability[1]}", *OPTIONS, *options)


def _key(source: str, flags: Sequence[str]) -> str:
    """The name of the device code of a source."""
    words = (source, *flags, str(version()), _package())
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


@cache
def _package() -> str:
    """The version of NVRTC's wheel, which says more than NVRTC does; empty where it is no wheel."""
    for name in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13", "nvidia-cuda-nvrtc-cu12"):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


# -- NVRTC ----------------------------------------------------------------------------------------


@cache
def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise SymdnnError(
            f"kernels are compiled by NVRTC, which is missing ({error}): "
            "pip install cuda-bindings nvidia-cuda-nvrtc"
        ) from error
    return nvrtc


def _checked(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if int(status) != 0:
        raise SymdnnError(f"NVRTC: {status.name}")
    return values[0] if len(values) == 1 else tuple(values)


@cache
def version() -> tuple[int, int]:
    """NVRTC's version."""
    try:
        major, minor = _checked(_nvrtc().nvrtcVersion())
    except RuntimeError as error:  # cuda-bindings without the library
        raise SymdnnError(
            f"NVRTC's library is missing: pip install nvidia-cuda-nvrtc ({error})"
        ) from error
    return int(major), int(minor)


def supported_architectures() -> tuple[tuple[int, int], ...]:
    """Compute capabilities that this NVRTC compiles for."""
    version()
    return tuple(divmod(int(a), 10) for a in _checked(_nvrtc().nvrtcGetSupportedArchs()))


def _compile(source: str, flags: Sequence[str]) -> bytes:
    nvrtc = _nvrtc()
    program = _checked(nvrtc.nvrtcCreateProgram(source.encode(), b"symdnn.cu", 0, [], []))
    try:
        encoded = [f.encode() for f in flags]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        if int(status) != 0:
            raise KernelCompileError(_log(program), source, flags)
        cubin = bytearray(_checked(nvrtc.nvrtcGetCUBINSize(program)))
        _checked(nvrtc.nvrtcGetCUBIN(program, cubin))
        return bytes(cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _log(program: Any) -> str:
    nvrtc = _nvrtc()
    log = bytearray(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
    _checked(nvrtc.nvrtcGetProgramLog(program, log))
    return log.rstrip(b"\0").decode(errors="replace")
