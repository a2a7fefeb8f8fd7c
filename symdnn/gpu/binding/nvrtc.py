"""CUDA C source compiled to a cubin by NVRTC, with a cache on disk.

Entries of the cache (:mod:`symdnn.disk.store`) are named by the hash of source, options and NVRTC's
version. The sources include no headers, so that no CUDA toolkit is needed.
"""

from __future__ import annotations

import contextvars
import hashlib
import os
import re
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from symdnn.config import config
from symdnn.disk import object_file
from symdnn.disk.store import Store
from symdnn.errors import KernelCompileError, SymdnnError
from symdnn.world.turns import made_once

#: With fmad two kernels that compute the same x * y + z could give different bits. Then
#: ``eq(x, max(x))``, which gradients of max and min use, could be false everywhere.
#: ftz is off by default, so float32 keeps denormal numbers, as on a CPU.
OPTIONS = ("--std=c++17", "--fmad=false")
CUBINS = Store("cubin", ".cubin", b"symdnn-cubin-2\n")

#: The first compute capability on which a kernel may be launched before the one before it ends.
#: It waits for that one at its start; the wait ends at once in a launch that is not early. No
#: kernel lets the next one begin before its blocks end (``griddepcontrol.launch_dependents``):
#: cuDNN launches some of its own early, which then read a bias that was not there yet.
_EARLY_CAPABILITY = (9, 0)
_START = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
_ENTRY = re.compile(r"__global__\s+void\b[^;{}#]*\{")
_IN_A_MACRO = re.compile(r"^\s*#.*__global__", re.MULTILINE)
_early_launch = config.reader("gpu.early_launch")

_MAX_THREADS = 8
#: Cubins that were begun and not asked for yet, and how many there may be.
_begun: dict[str, Future[bytes]] = {}
_begun_lock = threading.Lock()
_MAX_BEGUN = 512


def compile_cubin(
    source: str,
    capability: tuple[int, int],
    options: Sequence[str] = (),
    folder: Path | None = None,
) -> bytes:
    """The cubin of ``source`` for a compute capability such as ``(9, 0)``: cached, else compiled.

    ``folder`` is the cache's, by default one in ``base_compiledir``. Raises
    :class:`~symdnn.errors.KernelCompileError` with NVRTC's log and the source.
    """
    flags = _flags(capability, options)
    key = _key(source, flags)
    with _begun_lock:
        begun = _begun.pop(key, None)
    return _made(key, source, flags, folder) if begun is None else begun.result()


def begin_cubins(sources: Iterable[str], capability: tuple[int, int]) -> None:
    """Have threads make cubins that :func:`compile_cubin` is likely to be asked for soon.

    NVRTC compiles in several threads at a time, without Python's lock.
    """
    flags = _flags(capability, ())
    with _begun_lock:
        for source in sources:
            key = _key(source, flags)
            if key not in _begun and len(_begun) < _MAX_BEGUN:
                within = contextvars.copy_context()  # flags that only hold here
                _begun[key] = _pool().submit(within.run, _made, key, source, flags, None)


def _made(key: str, source: str, flags: Sequence[str], folder: Path | None) -> bytes:
    found = CUBINS.get(key, folder, cubin_problem)
    if found is None:
        found = made_once(CUBINS, key, lambda: _compile(source, flags), folder, cubin_problem)
        CUBINS.put(key, found, folder)
    return found


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(_MAX_THREADS, len(os.sched_getaffinity(0))), "symdnn-nvrtc")


def _after_fork() -> None:
    """A child process has none of the threads."""
    global _begun_lock
    _begun_lock = threading.Lock()
    _begun.clear()
    _pool.cache_clear()


os.register_at_fork(after_in_child=_after_fork)


def forget_cubin(source: str, capability: tuple[int, int], options: Sequence[str] = ()) -> None:
    """Remove a cubin of :func:`compile_cubin` from the cache, because the driver refused it."""
    CUBINS.drop(_key(source, _flags(capability, options)))


def waiting(source: str, capability: tuple[int, int]) -> str:
    """The source with kernels that may be launched early; itself where they may not."""
    off = capability < _EARLY_CAPABILITY or _early_launch() == "off"
    if off or _IN_A_MACRO.search(source):
        return source
    made, count = _ENTRY.subn(lambda found: f"{found[0]} {_START}", source)
    return made if count == source.count("__global__") else source


def cubin_problem(cubin: bytes) -> str:
    """Why ``cubin`` is not an object file of device code; ``""`` where it is one."""
    return object_file.problem(cubin, object_file.CUDA)


def _flags(capability: tuple[int, int], options: Sequence[str]) -> tuple[str, ...]:
    return (f"--gpu-architecture=sm_{capability[0]}{capability[1]}", *OPTIONS, *options)


def _key(source: str, flags: Sequence[str]) -> str:
    """The name of the cache's entry."""
    words = (source, *flags, str(version()), _package(), *[_START] * (_early_launch() != "off"))
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


@cache
def _package() -> str:
    """The full version of NVRTC's wheel, ``""`` without one. NVRTC itself lacks the patch level."""
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
    text = waiting(source, divmod(int(flags[0].rpartition("_")[2]), 10))
    program = _checked(nvrtc.nvrtcCreateProgram(text.encode(), b"symdnn.cu", 0, [], []))
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
