"""A loader of LLVM's object code that does without LLVM, whose library takes 0.03 s to load.

Position-independent object code for x86-64 is simple: a few sections, and relocations of distances
and of 64-bit addresses. Functions of the process may be too far away for a distance, and are called
by way of links behind the sections: a jump, and the address that it reads. Anything else is left to
LLVM's own loader.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

from symdnn.disk.object_file import Section


class UnsupportedObject(Exception):
    """Object code with something that this loader does not support; the text names it."""


class UndefinedSymbol(UnsupportedObject):
    """Object code with a symbol that the process lacks: LLVM's loader would end the process."""


_MAGIC = b"\x7fELF\x02\x01"
_EM_X86_64 = 62
_SECTION_HEADER, _SYMBOL_ENTRY = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_SHT_PROGBITS, _SHT_SYMTAB, _SHT_RELA, _SHT_NOBITS = 1, 2, 4, 8
_SHF_WRITE, _SHF_ALLOC = 1, 2
_SHN_UNDEF, _SHN_LORESERVE = 0, 0xFF00
_R_X86_64_64, _R_X86_64_PC32, _R_X86_64_PLT32 = 1, 2, 4
#: Distances to an address in memory, also those that a linker may do without.
_GOT = frozenset({9, 41, 42})
#: ``jmp [rip + 2]`` and two idle bytes; the address follows.
_JUMP = bytes.fromhex("ff2502000000 6690")
_LINK_BYTES = 16


class CodeAddress(int):
    """The address of a function. It keeps the function's pages mapped."""

    pages: mmap.mmap


@cache
def available() -> bool:
    """Whether this loader supports the machine: Linux on x86-64."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def place(code: bytes, name: str) -> CodeAddress:
    """Load an object file into executable memory; returns the address of its function ``name``.

    Raises :class:`UnsupportedObject` for anything that this loader does not support, a missing
    function, or (:class:`UndefinedSymbol`) an undefined symbol, and ``OSError`` where memory cannot
    be made executable.
    """
    if not available():
        raise UnsupportedObject("the machine is another one")
    try:
        return _Object(code).place(name)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise UnsupportedObject(f"the object file is odd: {error}") from error


def run_bytes(code: bytes, *types: Any) -> Any:
    """A ctypes function of these x86-64 instructions; raises as :func:`place`."""
    if not available():
        raise UnsupportedObject("the machine is another one")
    memory = _Memory(len(code))
    memory.write(0, code)
    return function_at(memory.finish(), *types)


def function_at(address: int, *types: Any) -> Any:
    """A ctypes function at an address. A :class:`CodeAddress` stays mapped as long as it lives."""
    found: Any = ctypes.CFUNCTYPE(None, *types)(address)
    found.placed = address
    return found


class _Memory:
    """Anonymous pages, written first and executable afterwards."""

    def __init__(self, nbytes: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._pages = mmap.mmap(-1, nbytes, flags, mmap.PROT_READ | mmap.PROT_WRITE)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        self._nbytes = nbytes

    def write(self, at: int, content: bytes) -> None:
        self._pages[at : at + len(content)] = content

    def finish(self, at: int = 0) -> CodeAddress:
        """Make the pages read-only and executable; returns the address of byte ``at``."""
        if _process().mprotect(self.start, self._nbytes, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
            raise OSError("memory for compiled code cannot be made executable")
        found = CodeAddress(self.start + at)
        found.pages = self._pages
        return found


@cache
def _process() -> Any:
    """The process's global symbols."""
    found = ctypes.CDLL(None)
    found.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return found


_symbol_addresses: dict[str, int] = {}


def _address_of(name: str) -> int:
    """The address of a global symbol of the process."""
    if name not in _symbol_addresses:
        try:
            found = ctypes.cast(getattr(_process(), name), ctypes.c_void_p).value
        except AttributeError:
            found = None
        if not found:
            raise UndefinedSymbol(f"{name} is not defined")
        _symbol_addresses[name] = found
    return _symbol_addresses[name]


class _Object:
    """The sections of an object file, and the offsets of those that are loaded."""

    def __init__(self, code: bytes) -> None:
        if code[:6] != _MAGIC or struct.unpack_from("<HH", code, 16) != (1, _EM_X86_64):
            raise UnsupportedObject("it is no object file of x86-64")
        self.code = code
        (start,) = struct.unpack_from("<Q", code, 40)
        count, names = struct.unpack_from("<HH", code, 60)
        self.sections = [
            Section(*_SECTION_HEADER.unpack_from(code, start + _SECTION_HEADER.size * k))
            for k in range(count)
        ]
        self._names = self.sections[names]
        self.at: dict[int, int] = {}
        #: Offsets of the links to symbols, by their numbers.
        self._links: dict[int, int] = {}
        self.nbytes = 0
        for k, section in enumerate(self.sections):
            if section.flags & _SHF_ALLOC and self._is_used(section):
                self.nbytes = -(-self.nbytes // max(section.align, 1)) * max(section.align, 1)
                self.at[k] = self.nbytes
                self.nbytes += section.size

    def place(self, name: str) -> CodeAddress:
        symbols = next(s for s in self.sections if s.kind == _SHT_SYMTAB)
        tables = [s for s in self.sections if s.kind == _SHT_RELA and s.info in self.at]
        for table in tables:
            self._reserve_links(table, symbols)
        memory = _Memory(max(self.nbytes, 1))
        for k, at in self.at.items():
            section = self.sections[k]
            if section.kind == _SHT_PROGBITS:
                content = self.code[section.offset : section.offset + section.size]
                memory.write(at, content)
        for symbol, at in self._links.items():
            address = struct.pack("<Q", self._value(memory, symbols, symbol))
            memory.write(at, _JUMP + address)
        for table in tables:
            self._relocate(memory, table, symbols)
        return memory.finish(self._function(symbols, name))

    def _is_used(self, section: Section) -> bool:
        """Whether the section is loaded. Unwinding tables are not needed."""
        if self._text(self._names, section.name) == ".eh_frame":
            return False
        if section.kind not in (_SHT_PROGBITS, _SHT_NOBITS):
            raise UnsupportedObject(f"a section of kind {section.kind}")
        if section.flags & _SHF_WRITE and section.size:  # the pages become read-only
            raise UnsupportedObject("a section that is written to")
        return True

    def _text(self, table: Section, at: int) -> str:
        begin = table.offset + at
        return self.code[begin : self.code.index(b"\0", begin)].decode()

    def _reserve_links(self, section: Section, symbols: Section) -> None:
        """Reserve links to symbols that are called and undefined, or whose address is read."""
        for _, kind, symbol, _ in self._relocations(section):
            called = kind == _R_X86_64_PLT32 and self._entry(symbols, symbol)[1] == _SHN_UNDEF
            if (called or kind in _GOT) and symbol not in self._links:
                self._links[symbol] = -(-self.nbytes // _LINK_BYTES) * _LINK_BYTES
                self.nbytes = self._links[symbol] + _LINK_BYTES

    def _relocations(self, section: Section) -> Iterator[tuple[int, int, int, int]]:
        """(offset, kind, number of the symbol, addend) of each."""
        for at in range(section.offset, section.offset + section.size, _RELOCATION.size):
            offset, info, addend = _RELOCATION.unpack_from(self.code, at)
            yield offset, info & 0xFFFFFFFF, info >> 32, addend

    def _relocate(self, memory: _Memory, section: Section, symbols: Section) -> None:
        base = self.at[section.info]
        for offset, kind, symbol, addend in self._relocations(section):
            if kind in _GOT:
                target = memory.start + self._links[symbol] + len(_JUMP)
            elif kind == _R_X86_64_PLT32 and symbol in self._links:
                target = memory.start + self._links[symbol]
            else:
                target = self._value(memory, symbols, symbol)
            target += addend
            if kind == _R_X86_64_64:
                memory.write(base + offset, struct.pack("<Q", target % 2**64))
            elif kind in (_R_X86_64_PC32, _R_X86_64_PLT32, *_GOT):
                memory.write(base + offset, _pc_relative(target - (memory.start + base + offset)))
            else:
                raise UnsupportedObject(f"a relocation of kind {kind}")

    def _entry(self, symbols: Section, index: int) -> tuple[int, int, int]:
        """(name, section, value) of a symbol."""
        at = symbols.offset + _SYMBOL_ENTRY.size * index
        name, _, _, section, value, _ = _SYMBOL_ENTRY.unpack_from(self.code, at)
        return name, section, value

    def _value(self, memory: _Memory, symbols: Section, index: int) -> int:
        """The address of a symbol."""
        name, section, value = self._entry(symbols, index)
        if section == _SHN_UNDEF:
            return _address_of(self._text(self.sections[symbols.link], name))
        if section >= _SHN_LORESERVE or section not in self.at:
            raise UnsupportedObject("a symbol in no loaded section")
        return int(memory.start + self.at[section] + value)

    def _function(self, symbols: Section, wanted: str) -> int:
        for at in range(symbols.offset, symbols.offset + symbols.size, _SYMBOL_ENTRY.size):
            name, _, _, section, value, _ = _SYMBOL_ENTRY.unpack_from(self.code, at)
            if section in self.at and self._text(self.sections[symbols.link], name) == wanted:
                return int(self.at[section] + value)
        raise UnsupportedObject(f"there is no {wanted}")


def _pc_relative(distance: int) -> bytes:
    if not -(2**31) <= distance < 2**31:
        raise UnsupportedObject("a symbol is too far away")
    return struct.pack("<i", distance)
