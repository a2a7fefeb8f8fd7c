"""oneDNN's library: searched for in a documented order, checked, loaded once.

The order is that of :func:`symdnn.detect.onednn_candidates`: the flag ``onednn.library_path``, this
Python's environment (where the wheel ``onednn-cpu-gomp`` puts it), conda, ``LD_LIBRARY_PATH``, the
loader. A library is taken if it is oneDNN 3 and its CPU runtime is OpenMP.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from symdnn.cpu.compiler.elf_check import truncation
from symdnn.cpu.threads import threads
from symdnn.detect import ABSENT, Candidate, onednn_candidates
from symdnn.errors import SymdnnError

#: ``dnnl_cpu_runtime``: what runs a primitive's parallel parts.
_RUNTIMES = {0: "none", 1: "sequential", 2: "OpenMP", 4: "TBB", 8: "thread pool", 512: "SYCL"}
_OPENMP = 2

#: ``dnnl_status_t``
_STATUS = {
    1: "out of memory", 2: "invalid arguments", 3: "unimplemented", 4: "last implementation",
    5: "runtime error", 6: "not required",
}  # fmt: skip

#: Names of values of ``dnnl_cpu_isa_t``.
_ISA = {
    0x1: "SSE4.1", 0x3: "AVX", 0x7: "AVX2", 0xF: "AVX2-VNNI", 0x27: "AVX-512", 0x67: "AVX-512 VNNI",
    0xE7: "AVX-512 BF16", 0x1EF: "AVX-512 FP16", 0xFEF: "AVX-512 AMX",
}  # fmt: skip


class OnednnError(SymdnnError, RuntimeError):
    """A function of oneDNN returned a status other than success."""

    def __init__(self, function: str, status: int, details: str = "") -> None:
        super().__init__(function, status, details)
        self.function, self.status, self.details = function, status, details

    def __str__(self) -> str:
        named = _STATUS.get(self.status, f"status {self.status}")
        return f"{self.function}: {named}" + (f" ({self.details})" if self.details else "")


class OnednnNotFound(SymdnnError, RuntimeError):
    """There is no oneDNN that symdnn can use; the message lists the candidates."""


class _Version(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int),
        ("hash", ctypes.c_char_p), ("cpu_runtime", ctypes.c_uint), ("gpu_runtime", ctypes.c_uint),
    ]  # fmt: skip


@dataclass(frozen=True)
class OnednnLibrary:
    """The loaded library: its path, version, CPU runtime and instruction set."""

    dll: Any
    path: str
    source: str
    version: tuple[int, int, int]
    runtime: str
    isa: str

    def __str__(self) -> str:
        version = ".".join(map(str, self.version))
        return f"oneDNN {version} ({self.runtime}, {self.isa}), {self.path}"


@cache
def _state() -> tuple[OnednnLibrary | None, tuple[Candidate, ...]]:
    """(the first usable library, all candidates with the reason if one is not usable)"""
    tried: list[Candidate] = []
    found: OnednnLibrary | None = None
    for candidate in onednn_candidates():
        if found is None and candidate.found:
            loaded = _load(candidate.path, candidate.source)
            if isinstance(loaded, str):
                candidate = replace(candidate, state=loaded)
            else:
                found = loaded
        tried.append(candidate)
    return found, tuple(tried)


def _load(path: str, source: str) -> OnednnLibrary | str:
    if damage := truncation(path):
        return damage
    threads.openmp()  # before oneDNN loads libgomp, which would then spin for longer
    try:
        dll = ctypes.CDLL(path)
        function = dll.dnnl_version
    except (OSError, AttributeError) as error:
        return _why(error)
    function.restype = ctypes.POINTER(_Version)
    v = function().contents
    version = (int(v.major), int(v.minor), int(v.patch))
    if version[0] != 3:
        return f"it is oneDNN {'.'.join(map(str, version))}; version 3 is wanted"
    runtime = _RUNTIMES.get(v.cpu_runtime, str(v.cpu_runtime))
    if v.cpu_runtime != _OPENMP:
        return f"its CPU runtime is {runtime}; OpenMP is wanted (the wheel onednn-cpu-gomp has it)"
    dll.dnnl_get_effective_cpu_isa.restype = ctypes.c_int
    isa = dll.dnnl_get_effective_cpu_isa()
    return OnednnLibrary(dll, path, source, version, runtime, _ISA.get(isa, f"ISA {isa:#x}"))


def _why(error: Exception) -> str:
    text = str(error)
    if "libgomp" in text:
        return f"{text}. Install GNU's OpenMP runtime (Debian: apt install libgomp1)"
    return text


def library() -> OnednnLibrary:
    """The library; raises :class:`OnednnNotFound` with all candidates."""
    found = _state()[0]
    if found is None:
        raise OnednnNotFound(problem())
    return found


def tried() -> tuple[Candidate, ...]:
    """All candidates: what was found at each path, or why it cannot be used."""
    return _state()[1]


def problem() -> str:
    """Why oneDNN cannot be used, in short in the first line; empty when it can."""
    found, places = _state()
    if found is not None:
        return ""
    broken = next((f"{c.path}: {c.state}" for c in places if c.state != ABSENT), None)
    why = broken or "libdnnl.so.3 is not there; pip install onednn-cpu-gomp"
    lines = [f"{c.path} ({c.source}): {c.state}" for c in places]
    return "\n  ".join([f"oneDNN can't be used: {why}", *lines])


def facts() -> dict[str, Any]:
    """Facts for a target: ``onednn`` (the version), ``isa``, ``threads``, ``notes``."""
    found = _state()[0]
    known: dict[str, Any] = {"threads": threads.allowed()}
    if found is None:
        return {**known, "notes": (problem(),)}
    return {**known, "onednn": found.version, "isa": found.isa, "notes": ()}


def has_bfloat16() -> bool:
    """Whether oneDNN has fast kernels for bfloat16 on this CPU."""
    found = _state()[0]
    return found is not None and found.isa.endswith(("BF16", "FP16", "AMX"))


def call(name: str, *args: Any) -> None:
    """Call ``dnnl_<name>``; raises :class:`OnednnError` unless it succeeds."""
    status = getattr(library().dll, f"dnnl_{name}")(*args)
    if status != 0:
        raise OnednnError(f"dnnl_{name}", status)
