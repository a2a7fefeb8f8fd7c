"""Compile LLVM modules to functions, and cache their object code on disk.

The object code of a module is a cache entry (:mod:`symdnn.disk.store`). Its key is a hash of LLVM's
library and version, of the processor, and of either the module's text or what the text is generated
from: the generator's sources, by their content, and its arguments.

LLVM is loaded only to compile something, or to find out its name and features of this processor,
which are cached too.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import secrets
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from symdnn.cpu.compiler import compile_queue, elf_loader
from symdnn.cpu.compiler.llvm_worker import FAR_CONSTANTS, SKIP_PASSES, Compiler
from symdnn.cpu.compiler.proven import Proven, kinds_of
from symdnn.disk import overlay
from symdnn.disk.identity import library_digest, sources_digest
from symdnn.disk.object_file import host_machine
from symdnn.disk.object_file import problem as object_problem
from symdnn.disk.store import Store
from symdnn.errors import KernelCompileError, SymdnnError
from symdnn.graph.runtime import COMPILE_CLOCK
from symdnn.world.turns import made_once

__all__ = [
    "FACTS", "FAR_CONSTANTS", "OBJECTS", "SKIP_PASSES", "Code", "NotCompiled",
    "compile_for_process", "compile_function", "compile_generated", "has", "identity",
    "installed", "note_process_wide", "only_cached", "problem", "processor_digest", "ready",
    "vector_width",
]  # fmt: skip

#: Caches of object code, and of LLVM's name and features of a processor.
OBJECTS = Store("object", ".o", b"symdnn-object-2\n")
FACTS = Store("object", ".llvm", b"symdnn-llvm-2\n")
_lock = threading.RLock()
_queue = compile_queue.Queue()
#: After a fork: the parent's queue, kept so that it is not finalised here.
_parent_queue: compile_queue.Queue | None = None


def _in_child() -> None:
    global _queue, _parent_queue
    _queue, _parent_queue = compile_queue.Queue(), _queue
    _lock.release()


# A child that is forked while a thread is inside llvmlite would find its lock taken for ever.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_in_child)


@cache
def installed() -> bool:
    """Whether llvmlite is installed; it is not loaded."""
    return importlib.util.find_spec("llvmlite") is not None


@cache
def problem() -> str:
    """Why kernels cannot be compiled here; empty when they can. It is also printed once."""
    try:
        with _lock:
            _facts()
    except Warning:  # about the cache folder, where warnings are errors: LLVM may be fine
        raise
    except Exception as error:  # a broken library raises OSError, and others
        what = "is missing" if isinstance(error, ModuleNotFoundError) else "cannot be loaded"
        line = f"llvmlite {what} ({str(error).partition(chr(10))[0]}): pip install llvmlite"
        print(f"symdnn: {line}. NumPy's kernels are used, which are slower", file=sys.stderr)
        return line
    return ""


# -- the processor, by LLVM -----------------------------------------------------------------------


class _Facts(NamedTuple):
    """LLVM's version, and its names of the processor and of the processor's features."""

    version: str
    processor: str
    features: str


@cache
def _facts() -> _Facts:
    """From the cache, else from LLVM; raises whatever importing it raises."""
    key = _facts_key()
    found = FACTS.get(key, problem_of=_facts_problem) if key else None
    if found is not None:
        return _Facts(*json.loads(found))
    _queue.wake()  # the cache is empty: there will be much to compile
    compiler = _compiler()
    facts = _Facts(compiler.version, compiler.processor, compiler.features)
    if key:
        FACTS.put(key, json.dumps(facts).encode())
    return facts


def _facts_problem(content: bytes) -> str:
    try:
        words = json.loads(content)
    except ValueError:
        return "no JSON"
    right = isinstance(words, list) and len(words) == len(_Facts._fields)
    return "" if right and all(isinstance(w, str) for w in words) else "not what LLVM says"


def _facts_key() -> str:
    """A hash of llvmlite and the processor; empty where the processor is not known."""
    processor = _processor()
    if not processor:
        return ""
    return hashlib.sha256(f"{_library()}\0{processor}".encode()).hexdigest()


@cache
def _library() -> str:
    """llvmlite's version, and a digest of its library."""
    import llvmlite

    folder = Path(str(llvmlite.__file__)).parent / "binding"
    version = getattr(llvmlite, "__version__", "")  # a broken installation lacks it
    return f"{version} {library_digest(sorted(folder.glob('*llvmlite*.*')))}"


#: Fields of ``/proc/cpuinfo`` (x86) that LLVM's name and features of a processor follow from.
_CPUINFO_FIELDS = ("vendor_id", "cpu family", "model", "stepping", "flags")


def _processor() -> str:
    """Linux's description of the first processor; empty where it is not x86."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            first = file.read(1 << 14).partition("\n\n")[0].splitlines()
    except OSError:
        return ""
    found = [line for line in first if line.partition("\t")[0].strip() in _CPUINFO_FIELDS]
    return "\n".join(found) if len(found) == len(_CPUINFO_FIELDS) else ""


def processor_digest() -> str:
    """A hash of the processor's description; empty where it is not known."""
    text = _processor()
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""


@cache
def _compiler() -> Compiler:
    return Compiler()


@cache
def _proven() -> Proven:
    """The kinds of instructions that this LLVM has compiled for this processor."""
    return Proven(_key("proven"))


def identity() -> dict[str, str]:
    """What object code depends on besides its text, as texts. LLVM is not loaded for it."""
    return {"sources": _sources(), "llvmlite": _library(), "processor": _processor()}


def note_process_wide() -> None:
    """Have LLVM's facts and the code that the process keeps read again.

    Both are noted by that: :mod:`symdnn.disk.overlay`.
    """
    _facts.__wrapped__()
    for wanted in _process_wide:
        assert compile_generated(*wanted).function


def vector_width() -> int:
    """The vector width of this processor, in float32 elements."""
    return 16 if has("avx512f") else 8 if has("avx") else 4


def halves_vectors() -> bool:
    """Whether the processor has AVX-512, but computes in halves of its vectors.

    There code for 256 bits is as fast, and its tiles are filled by fewer channels.
    """
    return vector_width() == 16 and _facts().processor in _HALVING


def has(feature: str) -> bool:
    """Whether the processor has a feature, by LLVM's name of it."""
    return f"+{feature}" in _all_of(_facts().features)


@cache
def _all_of(features: str) -> frozenset[str]:
    return frozenset(features.split(","))


#: LLVM's names of processors that compute in halves of the vectors of AVX-512.
_HALVING = ("znver4",)

# -- functions ------------------------------------------------------------------------------------


class Code:
    """A compiled function with parameters of these ctypes types. It is compiled when first used.

    It can be called, and passed to ``ctypes.cast``. Both raise
    :class:`~symdnn.errors.KernelCompileError` where LLVM refuses the text.
    """

    __slots__ = ("__weakref__", "_call", "_folder", "_job", "_key", "_name", "_types")

    def __init__(self, name: str, types: tuple[Any, ...], key: str, folder: Path | None) -> None:
        self._name, self._types, self._key, self._folder = name, types, key, folder
        self._job: compile_queue.Job | None = None
        self._call: Any = None

    def __call__(self, *arguments: Any) -> None:
        """Run the function."""
        call = self._call
        (self.function if call is None else call)(*arguments)

    @property
    def waits(self) -> bool:
        """Whether it has to be compiled yet."""
        return self._call is None

    @property
    def ended(self) -> bool:
        """Whether the compiler has nothing left to do for it; loading it may be left."""
        job = self._job
        return self._call is not None or (job is not None and job.ended)

    @property
    def function(self) -> Any:
        """The ctypes function; compiled and loaded now if it is not yet."""
        with _lock:
            if self._call is None:
                with COMPILE_CLOCK.running():
                    self._finish()
        return self._call

    @property
    def _as_parameter_(self) -> Any:
        return self.function

    def enqueue(self, text: str) -> None:
        """Queue the module for compilation."""
        kinds = kinds_of(text)
        self._job = compile_queue.Job(text, kinds, _proven().has(kinds), self._made)
        _queue.add(self._job)

    def problem_of(self, code: bytes) -> str:
        """Why this cannot be the module's object code; empty where it can."""
        return object_problem(code, host_machine(), self._name)

    def load(self, code: bytes) -> None:
        """Load the module's object code."""
        try:
            address: int = elf_loader.place(code, self._name)
        except elf_loader.UndefinedSymbol as error:
            raise KernelCompileError(str(error), "", (_facts().processor,), "LLVM") from error
        except elf_loader.UnsupportedObject:
            address = _compiler().load(code, self._name)
        except OSError as error:
            raise KernelCompileError(str(error), "", (_facts().processor,), "LLVM") from error
        if not address:
            words = f"object code has no {self._name}"
            raise KernelCompileError(words, "", (_facts().processor,), "LLVM")
        self._call = elf_loader.function_at(address, *self._types)
        self._job = None

    def _finish(self) -> None:
        """Compile and load it: here, or by waiting for the worker while compiling other modules."""
        job = self._job
        assert job is not None
        if job.inherited and not job.proven:
            self.enqueue(job.text)
            job = self._job
            assert job is not None
        if not job.inherited and not self._compiled_by_worker(job):
            if _queue.take(job) is not None:
                job.end(None)  # a later call must not wait for it if compiling fails below
            while not job.ended:
                other = _queue.take()
                if other is None:
                    job.wait()
                else:
                    other.run(_compile_or_none)
        if job.crash:
            words = f"LLVM ended the process that compiled it ({job.crash})"
            raise KernelCompileError(words, job.text, (_facts().processor,), "LLVM")
        code = job.code
        if code is None or self.problem_of(code):
            code = self._made(lambda: _compile(job.text))
        OBJECTS.put(self._key, code, self._folder)
        self.load(code)

    def _made(self, make: Callable[[], Any]) -> Any:
        """The object code that ``make`` returns, or that another rank of this machine has made."""
        return made_once(OBJECTS, self._key, make, self._folder, self.problem_of)

    def _compiled_by_worker(self, job: compile_queue.Job) -> bool:
        """Have the worker compile a text that is not proven; returns whether the job has ended.

        A proven text is left to the caller. So is any text where there can be no worker.
        """
        job.proven = job.proven or _proven().has(job.kinds)
        if job.proven or not (job.ended or _queue.prioritize(job)):
            return job.ended
        while not job.ended:
            other = _queue.take()
            if other is not None:
                other.run(_compile_or_none)
            elif job.wait(0.2) or not _queue.prioritize(job):
                break
        if job.code is not None:
            _proven().add(job.kinds)
        return job.ended


#: Functions in use, by key. Machine code is freed with the last plan that runs it.
_functions: weakref.WeakValueDictionary[str, Code] = weakref.WeakValueDictionary()
#: The last functions that were used, so that an expression compiled repeatedly finds its own.
_recent: deque[Code] = deque(maxlen=16)


class NotCompiled(SymdnnError):
    """There is no object code in the cache; see :func:`only_cached`."""


_this_thread = threading.local()


@contextmanager
def only_cached(missing: list[Code] | None = None) -> Iterator[None]:
    """A context of this thread that waits for no compiler: raises :class:`NotCompiled` instead.

    Functions without code are added to ``missing``, and the worker process compiles them, where
    there can be one.
    """
    before = getattr(_this_thread, "missing", None)
    _this_thread.missing = [] if missing is None else missing
    queues, _this_thread.queues = _queues(), missing is not None
    try:
        yield
    finally:
        _this_thread.missing, _this_thread.queues = before, queues


def _queues() -> bool:
    return bool(getattr(_this_thread, "queues", False))


def _missing() -> list[Code] | None:
    """The list of :func:`only_cached`; None outside of it."""
    return getattr(_this_thread, "missing", None)


def ready(code: Code) -> Code:
    """The code; in :func:`only_cached` that must have been compiled."""
    missing = _missing()
    if missing is not None and code.waits:
        if not code.ended:
            missing.append(code)
            raise NotCompiled("the code is not compiled yet")
        assert code.function  # loads it
    return code


def compile_function(text: str, name: str, *types: Any, folder: Path | None = None) -> Code:
    """Compile a module of LLVM IR; returns its function ``name`` with these ctypes parameters.

    ``folder`` is that of the cache (default: the flag ``base_compiledir``).
    Raises :class:`~symdnn.errors.KernelCompileError` with LLVM's words and the text.
    """
    with _lock:
        code = _code(_key(text), lambda: text, name, types, folder)
    assert code.function
    return code


def compile_generated(
    generate: Callable[..., str], arguments: tuple[Any, ...], name: str, *types: Any
) -> Code:
    """:func:`compile_function` of the text ``generate(*arguments)``, compiled when first used.

    The generator does not run where its object code is cached. It is a function of
    :mod:`symdnn.cpu` whose result depends only on the arguments, as ``repr`` shows them, and on the
    processor.
    """
    with _lock:
        key = _key(generate.__module__, generate.__qualname__, repr(arguments), _sources())
        return _code(key, lambda: generate(*arguments), name, types, None)


#: Arguments of :func:`compile_generated` for functions that the process keeps.
_process_wide: list[tuple[Any, ...]] = []


def compile_for_process(
    generate: Callable[..., str], arguments: tuple[Any, ...], name: str, *types: Any
) -> Code:
    """:func:`compile_generated` for a caller that keeps the function as long as the process."""
    wanted = (generate, arguments, name, *types)
    if wanted not in _process_wide:
        _process_wide.append(wanted)
    return compile_generated(*wanted)


def _key(*parts: str) -> str:
    """The cache key of a module; ``parts`` determine its text."""
    return hashlib.sha256("\0".join((*parts, _library(), *_facts())).encode()).hexdigest()


@cache
def _sources() -> str:
    """A digest of the generators' sources, and of the Python and NumPy whose objects kernels read.

    It is random where the sources cannot be read, so that nothing is found in the cache.
    """
    return sources_digest(*_GENERATOR_SOURCES) or secrets.token_hex(16)


#: Folders and modules of symdnn whose sources a module's text may depend on, besides its arguments.
_GENERATOR_SOURCES = ("cpu", "graph", "ops", "options")


def _code(
    key: str, text_of: Callable[[], str], name: str, types: tuple[Any, ...], folder: Path | None
) -> Code:
    """The function with this key: in use, loaded from the cache, or queued for compilation."""
    known = _functions.get(key)
    if known is not None and not overlay.is_noting():
        return ready(known)
    # LLVM's own loader has one namespace for all modules, so each function gets a unique name.
    unique = f"{name}_{key[:24]}"
    code = Code(unique, types, key, folder)
    found = OBJECTS.get(key, folder, code.problem_of)
    if found is None or not _loads(code, found):
        early = _missing() is not None
        if early and not (_queues() and _queue.may_work()):
            raise NotCompiled(f"no code of {name} is cached")
        code.enqueue(text_of().replace(f"@{name}(", f"@{unique}("))
        if early:
            _queue.wake()
    _functions[key] = code
    _recent.append(code)
    return ready(code)


def forget_recent() -> None:
    """Free the code that no plan runs."""
    _recent.clear()


def _loads(code: Code, content: bytes) -> bool:
    """Load cached object code; returns whether that worked. If not, it is compiled again."""
    try:
        code.load(content)
    except KernelCompileError:
        return False
    return True


def _compile(text: str) -> bytes:
    """Compile a module in this process."""
    try:
        return _compiler().compile(text)
    except (RuntimeError, OSError, ImportError) as error:
        raise KernelCompileError(str(error), text, (_facts().processor,), "LLVM") from error


def _compile_or_none(text: str) -> bytes | None:
    """:func:`_compile` for another caller, who sees the error when it compiles the text itself."""
    try:
        return _compile(text)
    except KernelCompileError:
        return None
