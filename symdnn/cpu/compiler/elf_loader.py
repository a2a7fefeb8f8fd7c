"""Object code into memory that can be run, without LLVM: loading that library takes 0.03 s.

What LLVM writes for a processor of x86-64 with its large code model is simple: a few sections, and
addresses of 64 bits to be filled in. Anything else is left to LLVM's own loader.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from functools import cache
from typing import Any, NamedTuple

__all__ = ["CannotPlace", "Placed", "Undefined", "function_at", "place", "run_bytes"]


class CannotPlace(Exception):
    """Object code that this loader does not know; the text says what it met."""


class Undefined(CannotPlace):
    """Object code that calls what this process does not have: LLVM's loader would end it."""


_HEAD = b"\x7fELF\x02\x01"
_X86_64 = 62
_SECTION, _SYMBOL = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_PROGBITS, _SYMTAB, _RELA, _NOBITS = 1, 2, 4, 8
_WRITE, _ALLOC = 1, 2
_UNDEFINED, _LAST_INDEX = 0, 0xFF00
_ADDRESS, _NEAR, _NEAR_CALL = 1, 2, 4  # R_X86_64_64, _PC32, _PLT32


class Placed(int):
    """Where a function is; its memory stays as long as this does."""

    pages: mmap.mmap


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


@cache
def available() -> bool:
    """Whether code can be placed here: Linux on x86-64."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def place(code: bytes, name: str) -> Placed:
    """Where function ``name`` of an object file is, after it was put into memory.

    Raises :class:`CannotPlace` for what is not known, an undefined symbol or a missing function
    among it, and ``OSError`` where memory cannot be made executable.
    """
    if not available():
        raise CannotPlace("the machine is another one")
    try:
        return _Object(code).place(name)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise CannotPlace(f"the object file is odd: {error}") from error


def run_bytes(code: bytes, *types: Any) -> Any:
    """A function of ctypes whose instructions, of x86-64, are these; raises as :func:`place`."""
    if not available():
        raise CannotPlace("the machine is another one")
    memory = _Memory(len(code))
    memory.write(0, code)
    return function_at(memory.finish(), *types)


def function_at(address: int, *types: Any) -> Any:
    """The function of ctypes at an address, which keeps the memory that it is in."""
    found: Any = ctypes.CFUNCTYPE(None, *types)(address)
    found.placed = address
    return found


class _Memory:
    """Pages that are written, then run."""

    def __init__(self, nbytes: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._pages = mmap.mmap(-1, nbytes, flags, mmap.PROT_READ | mmap.PROT_WRITE)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        self._nbytes = nbytes

    def write(self, at: int, content: bytes) -> None:
        self._pages[at : at + len(content)] = content

    def finish(self, at: int = 0) -> Placed:
        """Where byte ``at`` of them is; from now on they are read and run only."""
        if _process().mprotect(self.start, self._nbytes, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
            raise OSError("memory for compiled code cannot be made executable")
        found = Placed(self.start + at)
        found.pages = self._pages
        return found


@cache
def _process() -> Any:
    """What this process has loaded for all."""
    found = ctypes.CDLL(None)
    found.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return found


_known: dict[str, int] = {}


def _address_of(name: str) -> int:
    """Where the process has a symbol."""
    if name not in _known:
        try:
            found = ctypes.cast(getattr(_process(), name), ctypes.c_void_p).value
        except AttributeError:
            found = None
        if not found:
            raise Undefined(f"{name} is not defined")
        _known[name] = found
    return _known[name]


class _Object:
    """The sections of an object file, and where those that are run or read will lie."""

    def __init__(self, code: bytes) -> None:
        if code[:6] != _HEAD or struct.unpack_from("<HH", code, 16) != (1, _X86_64):
            raise CannotPlace("it is no object file of x86-64")
        self.code = code
        (start,) = struct.unpack_from("<Q", code, 40)
        count, names = struct.unpack_from("<HH", code, 60)
        self.sections = [
            _Section(*_SECTION.unpack_from(code, start + _SECTION.size * k)) for k in range(count)
        ]
        self._names = self.sections[names]
        self.at: dict[int, int] = {}
        self.nbytes = 0
        for k, section in enumerate(self.sections):
            if section.flags & _ALLOC and self._is_used(section):
                self.nbytes = -(-self.nbytes // max(section.align, 1)) * max(section.align, 1)
                self.at[k] = self.nbytes
                self.nbytes += section.size

    def place(self, name: str) -> Placed:
        memory = _Memory(max(self.nbytes, 1))
        for k, at in self.at.items():
            section = self.sections[k]
            if section.kind == _PROGBITS:
                content = self.code[section.offset : section.offset + section.size]
                memory.write(at, content)
        symbols = next(s for s in self.sections if s.kind == _SYMTAB)
        for section in self.sections:
            if section.kind == _RELA and section.info in self.at:
                self._relocate(memory, section, symbols)
        return memory.finish(self._function(symbols, name))

    def _is_used(self, section: _Section) -> bool:
        """Whether running needs it; tables for unwinding the stack are for nobody here."""
        if self._text(self._names, section.name) == ".eh_frame":
            return False
        if section.kind not in (_PROGBITS, _NOBITS):
            raise CannotPlace(f"a section of kind {section.kind}")
        if section.flags & _WRITE and section.size:  # pages are read and run only
            raise CannotPlace("a section that is written to")
        return True

    def _text(self, table: _Section, at: int) -> str:
        begin = table.offset + at
        return self.code[begin : self.code.index(b"\0", begin)].decode()

    def _relocate(self, memory: _Memory, section: _Section, symbols: _Section) -> None:
        base = self.at[section.info]
        for at in range(section.offset, section.offset + section.size, _RELOCATION.size):
            place_, info, addend = _RELOCATION.unpack_from(self.code, at)
            kind, target = info & 0xFFFFFFFF, self._value(memory, symbols, info >> 32) + addend
            if kind == _ADDRESS:
                memory.write(base + place_, struct.pack("<Q", target % 2**64))
            elif kind in (_NEAR, _NEAR_CALL):
                memory.write(base + place_, _near(target - (memory.start + base + place_)))
            else:
                raise CannotPlace(f"a relocation of kind {kind}")

    def _value(self, memory: _Memory, symbols: _Section, index: int) -> int:
        """Where a symbol is."""
        at = symbols.offset + _SYMBOL.size * index
        name, _, _, section, value, _ = _SYMBOL.unpack_from(self.code, at)
        if section == _UNDEFINED:
            return _address_of(self._text(self.sections[symbols.link], name))
        if section >= _LAST_INDEX or section not in self.at:
            raise CannotPlace("a symbol that lies nowhere")
        return int(memory.start + self.at[section] + value)

    def _function(self, symbols: _Section, wanted: str) -> int:
        for at in range(symbols.offset, symbols.offset + symbols.size, _SYMBOL.size):
            name, _, _, section, value, _ = _SYMBOL.unpack_from(self.code, at)
            if section in self.at and self._text(self.sections[symbols.link], name) == wanted:
                return int(self.at[section] + value)
        raise CannotPlace(f"there is no {wanted}")


def _near(distance: int) -> bytes:
    if not -(2**31) <= distance < 2**31:
        raise CannotPlace("a symbol is too far away")
    return struct.pack("<i", distance)
