"""LLVM: from the text of a module to machine code, kept on disk.

The object code of a module is an entry (:mod:`symdnn.disk.store`) named by the hash of its text,
of LLVM's library and version, and of the processor; or of what the text is made from: the sources
that make it, by their content, and what they are given.

LLVM is loaded where something has to be compiled, or where it is not known what it says of this
processor; that is kept too, by the library and the processor's description.
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
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from symdnn.cpu.compiler import compile_queue, elf_loader
from symdnn.cpu.compiler.llvm_worker import AS_WRITTEN, Compiler
from symdnn.cpu.compiler.proven import Proven, kinds_of
from symdnn.disk.identity import library_digest, sources_digest
from symdnn.disk.object_file import host_machine
from symdnn.disk.object_file import problem as object_problem
from symdnn.disk.store import Store
from symdnn.errors import KernelCompileError

__all__ = [
    "AS_WRITTEN", "FACTS", "OBJECTS", "Code", "compile_function", "compile_made", "has",
    "installed", "problem", "processor_digest", "vector_width",
]  # fmt: skip

#: Object code, and what LLVM says of a processor.
OBJECTS = Store("object", ".o", b"symdnn-object-2\n")
FACTS = Store("object", ".llvm", b"symdnn-llvm-2\n")
_lock = threading.RLock()
_queue = compile_queue.Queue()
#: A parent's queue and process, which are let be.
_of_parent: compile_queue.Queue | None = None


def _in_child() -> None:
    global _queue, _of_parent
    _queue, _of_parent = compile_queue.Queue(), _queue
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
    except Warning:  # of the cache folder, where warnings are errors: it says nothing of LLVM
        raise
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
    found = FACTS.get(described, problem_of=_wrong_facts) if described else None
    if found is not None:
        return _Facts(*json.loads(found))
    _queue.wake()  # nothing is known in this folder: there will be much to compile
    compiler = _compiler()
    facts = _Facts(compiler.version, compiler.processor, compiler.features)
    if described:
        FACTS.put(described, json.dumps(facts).encode())
    return facts


def _wrong_facts(content: bytes) -> str:
    try:
        words = json.loads(content)
    except ValueError:
        return "no JSON"
    right = isinstance(words, list) and len(words) == len(_Facts._fields)
    return "" if right and all(isinstance(w, str) for w in words) else "not what LLVM says"


def _described() -> str:
    """What changes when llvmlite does, or the processor; empty where that is not known."""
    processor = _processor()
    if not processor:
        return ""
    return hashlib.sha256(f"{_library()}\0{processor}".encode()).hexdigest()


@cache
def _library() -> str:
    """llvmlite's version, and what identifies its library."""
    import llvmlite

    folder = Path(str(llvmlite.__file__)).parent / "binding"
    version = getattr(llvmlite, "__version__", "")  # one that is broken lacks it
    return f"{version} {library_digest(sorted(folder.glob('*llvmlite*.*')))}"


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


def processor_digest() -> str:
    """What changes with the processor; empty where nothing is known of it."""
    text = _processor()
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""


@cache
def _compiler() -> Compiler:
    return Compiler()


@cache
def _proven() -> Proven:
    """What this LLVM has compiled for this processor."""
    return Proven(_key("proven"))


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

    __slots__ = ("__weakref__", "_call", "_job", "_keep", "_name", "_types")

    def __init__(self, name: str, types: tuple[Any, ...], keep: Callable[[bytes], None]) -> None:
        self._name, self._types, self._keep = name, types, keep
        self._job: compile_queue.Job | None = None
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
        kinds = kinds_of(text)
        self._job = compile_queue.Job(text, kinds, _proven().has(kinds))
        _queue.add(self._job)

    def wrong(self, code: bytes) -> str:
        """Why object code cannot be this module's; empty where it can."""
        return object_problem(code, host_machine(), self._name)

    def load(self, code: bytes) -> None:
        """Take object code: this module's."""
        try:
            address: int = elf_loader.place(code, self._name)
        except elf_loader.Undefined as error:
            raise KernelCompileError(str(error), "", (_facts().processor,), "LLVM") from error
        except elf_loader.CannotPlace:
            address = _compiler().load(code, self._name)
        except OSError as error:
            raise KernelCompileError(str(error), "", (_facts().processor,), "LLVM") from error
        if not address:
            words = f"object code has no {self._name}"
            raise KernelCompileError(words, "", (_facts().processor,), "LLVM")
        self._call = elf_loader.function_at(address, *self._types)
        self._job = None

    def _finish(self) -> None:
        """Compile it here, or wait for the process that does, and do other work meanwhile."""
        job = self._job
        assert job is not None
        if job.inherited and not job.proven:
            self.begin(job.text)
            job = self._job
            assert job is not None
        if not job.inherited and not self._by_another(job):
            if _queue.take(job) is not None:
                job.end(None)  # now, lest a call after one that failed waits for it
            while not job.ended:
                other = _queue.take()
                if other is None:
                    job.wait()
                else:
                    other.do(_compiled_or_none)
        if job.harm:
            words = f"LLVM ended the process that compiled it ({job.harm})"
            raise KernelCompileError(words, job.text, (_facts().processor,), "LLVM")
        code = job.code
        if code is None or self.wrong(code):
            code = _compiled(job.text)
        self._keep(code)
        self.load(code)

    def _by_another(self, job: compile_queue.Job) -> bool:
        """Have a text that is not proven compiled by another process, if there can be one."""
        job.proven = job.proven or _proven().has(job.kinds)
        if job.proven or not (job.ended or _queue.hurry(job)):
            return job.ended
        while not job.ended:
            other = _queue.take()
            if other is not None:
                other.do(_compiled_or_none)
            elif job.wait(0.2) or not _queue.hurry(job):
                break
        if job.code is not None:
            _proven().add(job.kinds)
        return job.ended


#: Those that somebody holds; machine code goes with the last plan that runs it.
_functions: weakref.WeakValueDictionary[str, Code] = weakref.WeakValueDictionary()
#: The last ones asked for, which an expression that is compiled again and again finds.
_recent: deque[Code] = deque(maxlen=16)


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
    return hashlib.sha256("\0".join((*parts, _library(), *_facts())).encode()).hexdigest()


@cache
def _sources() -> str:
    """What changes when a file does whose functions make text, or the Python and NumPy whose
    objects kernels read. Where that is not known it is like no other process's."""
    return sources_digest(*_TEXT_FROM) or secrets.token_hex(16)


#: The folders of all that a module's text follows from, besides what its maker is given.
_TEXT_FROM = ("cpu", "graph", "ops")


def _code(
    key: str, text_of: Callable[[], str], name: str, types: tuple[Any, ...], folder: Path | None
) -> Code:
    """The function that is known by ``key``; loaded, or begun, where it is not yet."""
    known = _functions.get(key)
    if known is not None:
        return known
    # LLVM's own loader has all modules in one place: every function has a name of its own.
    unique = f"{name}_{key[:24]}"
    code = Code(unique, types, lambda content: OBJECTS.put(key, content, folder))
    found = OBJECTS.get(key, folder, code.wrong)
    if found is None or not _loaded(code, found):
        code.begin(text_of().replace(f"@{name}(", f"@{unique}("))
    _functions[key] = code
    _recent.append(code)
    return code


def forget_recent() -> None:
    """Let go of code that no plan runs."""
    _recent.clear()


def _loaded(code: Code, content: bytes) -> bool:
    """Whether object code of another process could be loaded; if not it is made anew."""
    try:
        code.load(content)
    except KernelCompileError:
        return False
    return True


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
