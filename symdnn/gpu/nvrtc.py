"""CUDA C source to a cubin by NVRTC, kept on disk.

The cache is a folder of files named by the hash of source, options and NVRTC's version
(:mod:`symdnn.graph.disk`). NVRTC needs no toolkit: the sources include no header.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from symdnn.config import config
from symdnn.errors import KernelCompileError, SymdnnError
from symdnn.graph.disk import keep, kept

__all__ = ["compile_cubin", "supported_architectures", "version"]

#: fmad would make a value depend on which kernel computes it: two kernels that compute the same
#: x * y + z could disagree in ``eq(x, max(x))``, on which gradients of extremes rest.
OPTIONS = ("--std=c++17", "--fmad=false")
_MAGIC = b"symdnn-cubin-1\n"


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
    flags = (f"--gpu-architecture=sm_{capability[0]}{capability[1]}", *OPTIONS, *options)
    key = hashlib.sha256("\0".join((source, *flags, str(version()))).encode()).hexdigest()
    path = (folder or _folder()) / key[:2] / f"{key}.cubin"
    found = kept(path, _MAGIC)
    if found is None:
        found = _compile(source, flags)
        keep(path, _MAGIC, found)
    return found


def _folder() -> Path:
    return Path(str(config.base_compiledir)) / "cubin"


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
