"""Whether machine code in an ELF file is whole, before a loader that believes it gets it.

Looked at is what a loader follows: that sections, tables of symbols and of relocations lie in the
file and point to what is there. A damaged file would otherwise end the process.
"""

from __future__ import annotations

import platform
import struct
import sys
from typing import NamedTuple

__all__ = ["CUDA", "Section", "host_machine", "problem", "sections_of"]

#: ``e_machine`` of a cubin.
CUDA = 190
_MACHINES = {"x86_64": 62, "AMD64": 62, "aarch64": 183, "riscv64": 243, "ppc64le": 21}
_HEAD, _HEAD_BYTES = b"\x7fELF\x02\x01", 64
_SECTION, _SYMBOL = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ")
_SYMTAB, _STRTAB, _RELA, _NOBITS, _REL = 2, 3, 4, 8, 9
_ENTRY_BYTES = {_SYMTAB: 24, _RELA: 24, _REL: 16}
_EXECUTABLE, _FUNCTION, _LAST_INDEX = 4, 2, 0xFF00
#: No kernel has more memory of its own, nor asks for more than a huge page as alignment.
_MOST_BYTES, _MOST_ALIGN = 1 << 30, 1 << 21


class Section(NamedTuple):
    """An entry of the table of sections."""

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
    """``e_machine`` of this computer; None where code comes in no such file."""
    return _MACHINES.get(platform.machine()) if sys.platform == "linux" else None


def problem(code: bytes, machine: int | None, symbol: str = "") -> str:
    """Why ``code`` is no ELF file for ``machine`` with function ``symbol``; empty when it is.

    ``machine`` None is a computer whose files are others: only the symbol's name is looked for.
    """
    if machine is None:
        return "" if symbol.encode() in code else f"it has no {symbol}"
    try:
        if code[:6] != _HEAD or struct.unpack_from("<H", code, 18) != (machine,):
            return "it is no object file for this machine"
        return _problem(code, symbol, relocatable=struct.unpack_from("<H", code, 16) == (1,))
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        return f"the object file is cut off ({error})"


def sections_of(code: bytes) -> list[Section]:
    """The table of sections; raises ``struct.error`` where it is not in the file."""
    (start,) = struct.unpack_from("<Q", code, 40)
    entry_bytes, count = struct.unpack_from("<HH", code, 58)
    if count and (entry_bytes != _SECTION.size or start < _HEAD_BYTES):
        raise struct.error("no table of sections")
    return [Section(*_SECTION.unpack_from(code, start + _SECTION.size * k)) for k in range(count)]


def _problem(code: bytes, symbol: str, relocatable: bool) -> str:
    sections = sections_of(code)
    (names,) = struct.unpack_from("<H", code, 62)
    if names >= len(sections) or sections[names].kind != _STRTAB:
        return "its sections have no names"
    for section in sections:
        found = _of_section(code, section, sections)
        if found:
            return found
        if section.kind in (_RELA, _REL) and relocatable:
            found = _of_relocations(code, section, sections)
            if found:
                return found
    functions = [f for s in sections if s.kind == _SYMTAB for f in _functions(code, s, sections)]
    return "" if not symbol or symbol.encode() in functions else f"it has no {symbol}"


def _of_section(code: bytes, s: Section, sections: list[Section]) -> str:
    if s.align > _MOST_ALIGN or s.align & (s.align - 1) or s.size > _MOST_BYTES:
        return "a section has an impossible size"
    if s.kind not in (0, _NOBITS) and s.offset + s.size > len(code):
        return "a section is not all there"
    if s.kind == _STRTAB and s.size and code[s.offset + s.size - 1] != 0:
        return "names have no end"
    if s.kind in _ENTRY_BYTES:
        each = _ENTRY_BYTES[s.kind]
        if s.entry != each or s.size % each or s.link >= len(sections):
            return "a table has an impossible size"
    if s.kind == _SYMTAB and sections[s.link].kind != _STRTAB:
        return "symbols have no names"
    return ""


def _of_relocations(code: bytes, s: Section, sections: list[Section]) -> str:
    """Whether each changes bytes of its section, by a symbol that is there."""
    symbols = sections[s.link]
    if s.info >= len(sections) or symbols.kind != _SYMTAB:
        return "relocations have no section or no symbols"
    count, target = symbols.size // _SYMBOL.size, sections[s.info]
    for at in range(s.offset, s.offset + s.size, s.entry):
        where, info = struct.unpack_from("<QQ", code, at)
        if where + 8 > target.size + 4 or info >> 32 >= count:
            return "a relocation points out of the file"
    return ""


def _functions(code: bytes, table: Section, sections: list[Section]) -> list[bytes]:
    """Names of functions that lie in code; ``ValueError`` where a symbol points out of the file."""
    names, found = sections[table.link], []
    for at in range(table.offset, table.offset + table.size, _SYMBOL.size):
        name, kind, _, section, value, _ = _SYMBOL.unpack_from(code, at)
        if name >= max(names.size, 1):
            raise ValueError("a symbol has no name")
        if not 0 < section < _LAST_INDEX:
            continue
        if section >= len(sections) or value > sections[section].size:
            raise ValueError("a symbol lies nowhere")
        if kind & 15 == _FUNCTION and sections[section].flags & _EXECUTABLE:
            begin = names.offset + name
            found.append(code[begin : code.index(b"\0", begin)])
    return found
