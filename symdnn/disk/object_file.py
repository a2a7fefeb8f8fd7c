"""Checks an ELF file with machine code before a loader reads it, which would not check it.

Sections, symbol tables and relocations must be within the file and refer to existing items. A
damaged file could otherwise crash the process.
"""

from __future__ import annotations

import platform
import struct
import sys
from typing import NamedTuple

#: ``e_machine`` of a cubin.
CUDA = 190
_ELF_MACHINES = {"x86_64": 62, "AMD64": 62, "aarch64": 183, "riscv64": 243, "ppc64le": 21}
_MAGIC, _HEADER_BYTES = b"\x7fELF\x02\x01", 64
_SECTION_HEADER, _SYMBOL_ENTRY = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ")
_SHT_SYMTAB, _SHT_STRTAB, _SHT_RELA, _SHT_NOBITS, _SHT_REL = 2, 3, 4, 8, 9
_ENTRY_BYTES = {_SHT_SYMTAB: 24, _SHT_RELA: 24, _SHT_REL: 16}
_SHF_EXECINSTR, _STT_FUNC, _SHN_LORESERVE = 4, 2, 0xFF00
#: Limits of a section: no kernel has more memory, nor an alignment of more than a huge page.
_MAX_SECTION_BYTES, _MAX_ALIGN = 1 << 30, 1 << 21


class Section(NamedTuple):
    """An entry of the section header table."""

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


def host_machine() -> int | None:
    """``e_machine`` of this computer; None where object files are not ELF."""
    return _ELF_MACHINES.get(platform.machine()) if sys.platform == "linux" else None


def problem(code: bytes, machine: int | None, symbol: str = "") -> str:
    """Why ``code`` is no ELF file for ``machine`` with function ``symbol``; empty if it is.

    If ``machine`` is None, only the symbol's name is searched for.
    """
    if machine is None:
        return "" if symbol.encode() in code else f"it has no {symbol}"
    try:
        if code[:6] != _MAGIC or struct.unpack_from("<H", code, 18) != (machine,):
            return "it is no object file for this machine"
        return _problem(code, symbol, relocatable=struct.unpack_from("<H", code, 16) == (1,))
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        return f"the object file is cut off ({error})"


def sections_of(code: bytes) -> list[Section]:
    """The section header table; raises ``struct.error`` if it is not within the file."""
    (start,) = struct.unpack_from("<Q", code, 40)
    entry_bytes, count = struct.unpack_from("<HH", code, 58)
    if count and (entry_bytes != _SECTION_HEADER.size or start < _HEADER_BYTES):
        raise struct.error("no table of sections")
    places = range(start, start + _SECTION_HEADER.size * count, _SECTION_HEADER.size)
    return [Section(*_SECTION_HEADER.unpack_from(code, at)) for at in places]


def _problem(code: bytes, symbol: str, relocatable: bool) -> str:
    sections = sections_of(code)
    (names,) = struct.unpack_from("<H", code, 62)
    if names >= len(sections) or sections[names].kind != _SHT_STRTAB:
        return "its sections have no names"
    for section in sections:
        found = _section_problem(code, section, sections)
        if found:
            return found
        if section.kind in (_SHT_RELA, _SHT_REL) and relocatable:
            found = _relocation_problem(code, section, sections)
            if found:
                return found
    tables = [s for s in sections if s.kind == _SHT_SYMTAB]
    functions = [f for table in tables for f in _functions(code, table, sections)]
    return "" if not symbol or symbol.encode() in functions else f"it has no {symbol}"


def _section_problem(code: bytes, s: Section, sections: list[Section]) -> str:
    if s.align > _MAX_ALIGN or s.align & (s.align - 1) or s.size > _MAX_SECTION_BYTES:
        return "a section has an impossible size"
    if s.kind not in (0, _SHT_NOBITS) and s.offset + s.size > len(code):
        return "a section is not all there"
    if s.kind == _SHT_STRTAB and s.size and code[s.offset + s.size - 1] != 0:
        return "names have no end"
    if s.kind in _ENTRY_BYTES:
        each = _ENTRY_BYTES[s.kind]
        if s.entry != each or s.size % each or s.link >= len(sections):
            return "a table has an impossible size"
    if s.kind == _SHT_SYMTAB and sections[s.link].kind != _SHT_STRTAB:
        return "symbols have no names"
    return ""


def _relocation_problem(code: bytes, s: Section, sections: list[Section]) -> str:
    """Why a relocation is invalid: it is outside of its section, or its symbol does not exist."""
    symbols = sections[s.link]
    if s.info >= len(sections) or symbols.kind != _SHT_SYMTAB:
        return "relocations have no section or no symbols"
    count, target = symbols.size // _SYMBOL_ENTRY.size, sections[s.info]
    for at in range(s.offset, s.offset + s.size, s.entry):
        where, info = struct.unpack_from("<QQ", code, at)
        if where + 8 > target.size + 4 or info >> 32 >= count:
            return "a relocation points out of the file"
    return ""


def _functions(code: bytes, table: Section, sections: list[Section]) -> list[bytes]:
    """Names of functions in executable sections; ``ValueError`` for an invalid symbol."""
    names, found = sections[table.link], []
    for at in range(table.offset, table.offset + table.size, _SYMBOL_ENTRY.size):
        name, kind, _, section, value, _ = _SYMBOL_ENTRY.unpack_from(code, at)
        if name >= max(names.size, 1):
            raise ValueError("a symbol has no name")
        if not 0 < section < _SHN_LORESERVE:
            continue
        if section >= len(sections) or value > sections[section].size:
            raise ValueError("a symbol has no section")
        if kind & 15 == _STT_FUNC and sections[section].flags & _SHF_EXECINSTR:
            begin = names.offset + name
            found.append(code[begin : code.index(b"\0", begin)])
    return found
