"""LLVM: from the text of a module to machine code, kept on disk.

The object code of a module is a file named by the hash of its text, LLVM's version and the
processor. As with the device's kernels it is written beside its place and renamed, has a checksum,
and is dropped with a warning where that is wrong.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

from symdnn.config import config
from symdnn.errors import KernelCompileError
from symdnn.graph.disk import keep, kept

__all__ = ["compile_function", "installed", "problem", "vector_width"]

_MAGIC = b"symdnn-object-1\n"
_lock = threading.Lock()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # a thread that the child does not have may have held it


os.register_at_fork(after_in_child=_after_fork)


@cache
def installed() -> bool:
    """Whether LLVM seems to be there; nothing is loaded."""
    return importlib.util.find_spec("llvmlite") is not None


@cache
def problem() -> str:
    """Why kernels cannot be compiled here; empty when they can. It is also said once."""
    try:
        import llvmlite.binding  # noqa: F401
    except Exception as error:  # a library that is broken raises OSError, and more
        what = "is missing" if isinstance(error, ModuleNotFoundError) else "cannot be loaded"
        line = f"llvmlite {what} ({str(error).partition(chr(10))[0]}): pip install llvmlite"
        print(f"symdnn: {line}. NumPy's kernels are used, which are slower", file=sys.stderr)
        return line
    return ""


class _Compiler:
    """One per process: the processor's target machine, and an engine that owns all code."""

    def __init__(self) -> None:
        import llvmlite
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.llvm = llvm
        self.processor = llvm.get_host_cpu_name()
        self.features = llvm.get_host_cpu_features().flatten()
        target = llvm.Target.from_default_triple()
        self.machine = target.create_target_machine(
            cpu=self.processor, features=self.features, opt=3, jit=True
        )
        self.triple = target.triple
        self.version = f"{llvmlite.__version__} {llvm.llvm_version_info}"
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), self.machine)
        self.engine.set_object_cache(self._compiled, self._known)
        self._found: bytes | None = None
        self._made: bytes | None = None

    def key(self, text: str) -> str:
        """The name of a module's object code."""
        parts = (text, self.version, self.processor, self.features)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def add(self, text: str, known: bytes | None) -> bytes | None:
        """Compile a module, or load its object code; what was compiled, to be kept."""
        module = self.llvm.parse_assembly(text)
        module.verify()
        if known is None:
            self._optimise(module)
        self._found, self._made = known, None
        self.engine.add_module(module)
        self.engine.finalize_object()
        return self._made

    def _optimise(self, module: Any) -> None:
        options = self.llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization = options.slp_vectorization = True
        builder = self.llvm.create_pass_builder(self.machine, options)
        builder.getModulePassManager().run(module, builder)

    def _compiled(self, module: Any, code: bytes) -> None:
        self._made = code

    def _known(self, module: Any) -> bytes | None:
        return self._found


@cache
def _compiler() -> _Compiler:
    return _Compiler()


_functions: dict[str, Any] = {}


def vector_width() -> int:
    """How many float32 a vector of this processor has."""
    found = _compiler().features.split(",")
    return 16 if "+avx512f" in found else 8 if "+avx" in found else 4


def compile_function(text: str, name: str, *types: Any, folder: Path | None = None) -> Any:
    """The function ``name`` of a module of LLVM's IR, as one of ctypes with these parameters.

    ``folder`` is where object code is kept (default: in that of the flag ``base_compiledir``).
    Raises :class:`~symdnn.errors.KernelCompileError` with LLVM's words and the text.
    """
    with _lock:
        compiler = _compiler()
        key = compiler.key(text)
        if key not in _functions:
            root = folder or Path(str(config.base_compiledir)) / "object"
            path = root / key[:2] / f"{key}.o"
            # The engine is one, so every module's function has a name of its own.
            unique = f"{name}_{key[:24]}"
            try:
                made = compiler.add(text.replace(f"@{name}(", f"@{unique}("), kept(path, _MAGIC))
            except RuntimeError as error:
                raise KernelCompileError(str(error), text, (compiler.processor,), "LLVM") from error
            if made is not None:
                keep(path, _MAGIC, made)
            address = compiler.engine.get_function_address(unique)
            _functions[key] = ctypes.CFUNCTYPE(None, *types)(address)
        return _functions[key]
