"""Which kinds of text LLVM has compiled on this machine, and so does not end the process over.

LLVM answers some texts with ``abort()``. A text with an instruction whose kind, its operation and
its types, was never compiled here by this LLVM is given to another process first
(:mod:`symdnn.cpu.compiler.compile_queue`): if that one ends, a kernel is lost and not the program.
The kinds that went well are kept on disk, so in the end nothing has to wait for another process.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from symdnn.disk.store import Store

__all__ = ["KINDS", "Proven", "kinds_of"]

KINDS = Store("object", ".proven", b"symdnn-proven-1\n")
#: What two instructions of a kind differ in: names, numbers, comments. What stays are functions of
#: LLVM's, and how long vectors are.
_NAMES = re.compile(r";.*|%[-\w.]+|@(?!llvm\.)[-\w.]+|![\w.]+|(?<![\w.])-?\d[\w.+-]*\b(?! x )")


def kinds_of(text: str) -> frozenset[str]:
    """The kinds of instructions in a module's text."""
    lines = {line.strip() for line in _NAMES.sub("", text).splitlines()}
    return frozenset(hashlib.sha256(line.encode()).hexdigest()[:16] for line in lines)


class Proven:
    """The kinds that were compiled without harm, kept under the name of LLVM and the processor."""

    def __init__(self, key: str, folder: Path | None = None) -> None:
        self._key, self._folder = key, folder
        self._kinds = self._kept()

    def has(self, kinds: frozenset[str]) -> bool:
        """Whether all of these were."""
        return kinds <= self._kinds

    def add(self, new: frozenset[str]) -> None:
        """Note that a text of these was compiled."""
        if not new <= self._kinds:
            self._kinds |= new | self._kept()  # others have gone on meanwhile
            KINDS.put(self._key, json.dumps(sorted(self._kinds)).encode(), self._folder)

    def _kept(self) -> set[str]:
        found = KINDS.get(self._key, self._folder, _wrong)
        return set() if found is None else set(json.loads(found))


def _wrong(content: bytes) -> str:
    try:
        words = json.loads(content)
    except ValueError:
        return "no JSON"
    right = isinstance(words, list) and all(isinstance(w, str) for w in words)
    return "" if right else "no list of kinds"
