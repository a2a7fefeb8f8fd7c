"""LLVM: from the text of a module to machine code, kept on disk.

The object code of a module is a file named by the hash of its text, LLVM's version and the
processor, or of what the text is made from. As with the device's kernels it is written beside its
place and renamed, has a checksum, and is dropped with a warning where that is wrong.

LLVM is loaded where something has to be compiled, or where it is not known what it says of this
processor; that is kept too, by the library's files and the processor's description.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import json
import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from symdnn.config import config
from symdnn.cpu import compiling, placed_code
from symdnn.cpu.llvm import AS_WRITTEN, Compiler
from symdnn.errors import KernelCompileError
from symdnn.graph.disk import keep, kept

__all__ = [
    "AS_WRITTEN", "Code", "compile_function", "compile_made", "has", "installed", "problem",
    "vector_width",
]  # fmt: skip

_MAGIC = b"symdnn-object-1\n"
_FACTS_MAGIC = b"symdnn-llvm-1\n"
_lock = threading.RLock()
_queue = compiling.Queue()
#: A parent's queue and process, which are let be.
_of_parent: compiling.Queue | None = None


def _in_child() -> None:
    global _queue, _of_parent
    _queue, _of_parent = compiling.Queue(), _queue
    _lock.release()


# llvmlite has a lock that a child would find taken for ever: nobody is inside during a fork.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_in_child)


@cache
def installed() -> bool:
    """Whether LLVM seems to be there; nothing is loaded."""
    return importlib.util.find_spec("llvmlite") is not None


@cache
def problem() -> str:
    """Why kernels cannot be compiled here; empty when they can. It is also said once."""
    try:
        with _lock:
            _facts()
    except Exception as error:  # a library that is broken raises OSError, and more
        what = "is missing" if isinstance(error, ModuleNotFoundError) else "cannot be loaded"
        line = f"llvmlite {what} ({str(error).partition(chr(10))[0]}): pip install llvmlite"
        print(f"symdnn: {line}. NumPy's kernels are used, which are slower", file=sys.stderr)
        return line
    return ""


# -- what LLVM says of this machine ---------------------------------------------------------------


class _Facts(NamedTuple):
    """Names of LLVM's version, and of the processor and what it has."""

    version: str
    processor: str
    features: str


@cache
def _facts() -> _Facts:
    """Kept from another process, else asked of LLVM; whatever importing it raises."""
    described = _described()
    path = _root() / described[:2] / f"{described}.llvm"
    found = kept(path, _FACTS_MAGIC) if described else None
    if found is not None:
        return _Facts(*json.loads(found))
    _queue.wake()  # nothing is known in this folder: there will be much to compile
    compiler = _compiler()
    facts = _Facts(compiler.version, compiler.processor, compiler.features)
    if described:
        keep(path, _FACTS_MAGIC, json.dumps(facts).encode())
    return facts


def _described() -> str:
    """What changes when llvmlite does, or the processor; empty where that is not known."""
    import llvmlite

    folder = Path(str(llvmlite.__file__)).parent / "binding"
    files = sorted(folder.glob("*.so")) if folder.is_dir() else []
    told = [(str(f), s.st_size, s.st_mtime_ns) for f in files for s in [f.stat()]]
    processor = _processor()
    if not told or not processor:
        return ""
    every = (llvmlite.__version__, told, processor)
    return hashlib.sha256(repr(every).encode()).hexdigest()


#: Lines of ``/proc/cpuinfo`` that LLVM's words follow from, of x86.
_LINES = ("vendor_id", "cpu family", "model", "stepping", "flags")


def _processor() -> str:
    """How Linux describes the first processor of x86; empty for others."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            first = file.read(1 << 14).partition("\n\n")[0].splitlines()
    except OSError:
        return ""
    found = [line for line in first if line.partition("\t")[0].strip() in _LINES]
    return "\n".join(found) if len(found) == len(_LINES) else ""


@cache
def _compiler() -> Compiler:
    return Compiler()


def vector_width() -> int:
    """How many float32 a vector of this processor has."""
    return 16 if has("avx512f") else 8 if has("avx") else 4


def has(feature: str) -> bool:
    """Whether the processor has what LLVM calls so."""
    return f"+{feature}" in _facts().features.split(",")


# -- functions ------------------------------------------------------------------------------------


class Code:
    """A compiled function with parameters of these types; or one that will be, when it is needed.

    It is called as it is, and ``ctypes.cast`` takes it. Both raise
    :class:`~symdnn.errors.KernelCompileError` where LLVM refuses the text.
    """

    __slots__ = ("_call", "_job", "_name", "_path", "_types")

    def __init__(self, name: str, types: tuple[Any, ...], path: Path) -> None:
        self._name, self._types, self._path = name, types, path
        self._job: compiling.Job | None = None
        self._call: Any = None

    def __call__(self, *arguments: Any) -> None:
        """Run it."""
        call = self._call
        (self.function if call is None else call)(*arguments)

    @property
    def function(self) -> Any:
        """The function of ctypes."""
        with _lock:
            if self._call is None:
                self._finish()
        return self._call

    @property
    def _as_parameter_(self) -> Any:
        return self.function

    def begin(self, text: str) -> None:
        """Have the module compiled some time."""
        self._job = compiling.Job(text)
        _queue.add(self._job)

    def load(self, code: bytes) -> None:
        """Take object code: this module's."""
        try:
            address = placed_code.place(code, self._name)
        except placed_code.CannotPlace:
            address = _compiler().load(code, self._name)
        except OSError as error:
            raise KernelCompileError(str(error), "", (_facts().processor,), "LLVM") from error
        if not address:
            words = f"{self._path} has no {self._name}"
            raise KernelCompileError(words, "", (_facts().processor,), "LLVM")
        self._call = ctypes.CFUNCTYPE(None, *self._types)(address)
        self._job = None

    def _finish(self) -> None:
        """Compile it here, or wait for the process that does, and do other work meanwhile."""
        job = self._job
        assert job is not None
        if not job.inherited:
            if _queue.take(job) is not None:
                job.end(None)  # now, lest a call after one that failed waits for it
            while not job.ended:
                other = _queue.take()
                if other is None:
                    job.wait()
                else:
                    other.do(_compiled_or_none)
        code = _compiled(job.text) if job.code is None else job.code
        keep(self._path, _MAGIC, code)
        self.load(code)


_functions: dict[str, Code] = {}


def compile_function(text: str, name: str, *types: Any, folder: Path | None = None) -> Code:
    """The function ``name`` of a module of LLVM's IR, with these of ctypes as parameters.

    ``folder`` is where object code is kept (default: in that of the flag ``base_compiledir``).
    Raises :class:`~symdnn.errors.KernelCompileError` with LLVM's words and the text.
    """
    with _lock:
        code = _code(_key(text), lambda: text, name, types, folder)
    assert code.function
    return code


def compile_made(
    make: Callable[..., str], arguments: tuple[Any, ...], name: str, *types: Any
) -> Code:
    """:func:`compile_function` of ``make(*arguments)``, which is not called where its object code
    is known; else compiling may go on until the function is called.

    ``make`` is a function of :mod:`symdnn.cpu` whose result depends on the arguments, as ``repr``
    shows them, and on the processor alone.
    """
    with _lock:
        key = _key(make.__module__, make.__qualname__, repr(arguments), _sources())
        return _code(key, lambda: make(*arguments), name, types, None)


def _key(*parts: str) -> str:
    """The name of a module's object code; ``parts`` make the module what it is."""
    return hashlib.sha256("\0".join((*parts, *_facts())).encode()).hexdigest()


@cache
def _sources() -> str:
    """What changes when a file here does, or the Python whose objects kernels read."""
    with os.scandir(Path(__file__).parent) as entries:
        files = sorted((e for e in entries if e.name.endswith(".py")), key=lambda e: e.name)
    told = [(f.name, s.st_size, s.st_mtime_ns) for f in files for s in [f.stat()]]
    return repr((told, sys.version, object.__basicsize__))


def _root() -> Path:
    return Path(str(config.base_compiledir)) / "object"


def _code(
    key: str, text_of: Callable[[], str], name: str, types: tuple[Any, ...], folder: Path | None
) -> Code:
    """The function that is known by ``key``; loaded, or begun, where it is not yet."""
    if key in _functions:
        return _functions[key]
    path = (folder or _root()) / key[:2] / f"{key}.o"
    # LLVM's own loader has all modules in one place: every function has a name of its own.
    unique = f"{name}_{key[:24]}"
    code, found = Code(unique, types, path), kept(path, _MAGIC)
    if found is not None:
        code.load(found)
    else:
        code.begin(text_of().replace(f"@{name}(", f"@{unique}("))
    _functions[key] = code
    return code


def _compiled(text: str) -> bytes:
    """The object code of a module, by this process."""
    try:
        return _compiler().compile(text)
    except (RuntimeError, OSError, ImportError) as error:
        raise KernelCompileError(str(error), text, (_facts().processor,), "LLVM") from error


def _compiled_or_none(text: str) -> bytes | None:
    """The same for somebody else, who will hear of what is wrong when it is compiled again."""
    try:
        return _compiled(text)
    except KernelCompileError:
        return None
