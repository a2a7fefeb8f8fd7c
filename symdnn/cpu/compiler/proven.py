"""Kinds of instructions that LLVM has compiled on this machine without crashing.

LLVM calls ``abort()`` on some texts. The kind of an instruction is its operation and its types. A
text with a kind that this LLVM has never compiled here goes to the worker process first
(:mod:`symdnn.cpu.compiler.compile_queue`): if that crashes, a kernel is lost and not the program.
The proven kinds are kept on disk, so in the end no text has to wait for the worker.
"""

from __future__ import annotations

import hashlib
import json
import re

from symdnn.disk.store import Store

KINDS = Store("object", ".proven", b"symdnn-proven-1\n")
#: Differences between instructions of one kind: names, numbers, comments. LLVM's own functions and
#: the lengths of vectors are part of the kind.
_NAMES = re.compile(r";.*|%[-\w.]+|@(?!llvm\.)[-\w.]+|![\w.]+|(?<![\w.])-?\d[\w.+-]*\b(?! x )")


def kinds_of(text: str) -> frozenset[str]:
    """The kinds of instructions in a module's text."""
    lines = {line.strip() for line in _NAMES.sub("", text).splitlines()}
    return frozenset(hashlib.sha256(line.encode()).hexdigest()[:16] for line in lines)


class Proven:
    """The proven kinds of one LLVM and processor, whose hash is the key of the file."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._kinds = self._kept()

    def has(self, kinds: frozenset[str]) -> bool:
        """Whether all of these kinds are proven."""
        return kinds <= self._kinds

    def add(self, new: frozenset[str]) -> None:
        """Add the kinds of a text that was compiled."""
        if not new <= self._kinds:
            self._kinds |= new | self._kept()  # other processes may have added some
            KINDS.put(self._key, json.dumps(sorted(self._kinds)).encode())

    def _kept(self) -> set[str]:
        found = KINDS.get(self._key, problem_of=_wrong)
        return set() if found is None else set(json.loads(found))


def _wrong(content: bytes) -> str:
    try:
        words = json.loads(content)
    except ValueError:
        return "no JSON"
    right = isinstance(words, list) and all(isinstance(w, str) for w in words)
    return "" if right else "no list of kinds"
