"""LLVM: from the text of a module to machine code, kept on disk.

The object code of a module is a file named by the hash of its text, LLVM's version and the
processor, or of what the text is made from. As with the device's kernels it is written beside its
place and renamed, has a checksum, and is dropped with a warning where that is wrong.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from symdnn.config import config
from symdnn.errors import KernelCompileError
from symdnn.graph.disk import keep, kept

__all__ = ["AS_WRITTEN", "compile_function", "compile_made", "installed", "problem", "vector_width"]

#: How text begins that is in vectors already: LLVM's passes would take twice as long as the rest of
#: compiling, and gain nothing.
AS_WRITTEN = "; as written\n"
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
        self.engine.set_object_cache(self._compiled)
        self._made: list[bytes] = []

    def key(self, *parts: str) -> str:
        """The name of a module's object code; ``parts`` make the module what it is."""
        every = (*parts, self.version, self.processor, self.features)
        return hashlib.sha256("\0".join(every).encode()).hexdigest()

    def add(self, text: str, function: str) -> bytes:
        """Compile a module with that function; its object code."""
        module = self.llvm.parse_assembly(text)
        module.verify()
        if not text.startswith(AS_WRITTEN):
            self._optimise(module)
        self._made.clear()
        self.engine.add_module(module)
        self.engine.finalize_object()
        # The first time the engine's own module, an empty one, is compiled too.
        return next(code for code in self._made if function.encode() in code)

    def load(self, code: bytes) -> None:
        """Take object code that was compiled before."""
        self.engine.add_object_file(self.llvm.object_file.ObjectFileRef.from_data(code))
        self.engine.finalize_object()

    def _optimise(self, module: Any) -> None:
        options = self.llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization = options.slp_vectorization = True
        builder = self.llvm.create_pass_builder(self.machine, options)
        builder.getModulePassManager().run(module, builder)

    def _compiled(self, module: Any, code: bytes) -> None:
        self._made.append(code)


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
        return _function(_compiler().key(text), lambda: text, name, types, folder)


def compile_made(
    make: Callable[..., str], arguments: tuple[Any, ...], name: str, *types: Any
) -> Any:
    """:func:`compile_function` of ``make(*arguments)``, which is not called where its object code
    is known.

    ``make`` is a function of :mod:`symdnn.cpu` whose result depends on the arguments, as ``repr``
    shows them, and on the processor alone.
    """
    with _lock:
        parts = (make.__module__, make.__qualname__, repr(arguments), _sources())
        key = _compiler().key(*parts)
        return _function(key, lambda: make(*arguments), name, types, None)


@cache
def _sources() -> str:
    """What changes when a file here does, or the Python whose objects kernels read."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    told = [(f.name, s.st_size, s.st_mtime_ns) for f in files for s in [f.stat()]]
    return repr((told, sys.version, object.__basicsize__))


def _function(
    key: str, text_of: Callable[[], str], name: str, types: tuple[Any, ...], folder: Path | None
) -> Any:
    """The function that is known by ``key``; loaded or compiled, where it is not yet."""
    if key in _functions:
        return _functions[key]
    root = folder or Path(str(config.base_compiledir)) / "object"
    path = root / key[:2] / f"{key}.o"
    # The engine is one, so every module's function has a name of its own.
    unique = f"{name}_{key[:24]}"
    compiler, found = _compiler(), kept(path, _MAGIC)
    if found is None:
        text = text_of()
        try:
            made = compiler.add(text.replace(f"@{name}(", f"@{unique}("), unique)
        except RuntimeError as error:
            raise KernelCompileError(str(error), text, (compiler.processor,), "LLVM") from error
        keep(path, _MAGIC, made)
    else:
        compiler.load(found)
    address = compiler.engine.get_function_address(unique)
    if not address:
        raise KernelCompileError(f"{path} has no {name}", text_of(), (compiler.processor,), "LLVM")
    _functions[key] = ctypes.CFUNCTYPE(None, *types)(address)
    return _functions[key]
