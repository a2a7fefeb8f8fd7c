"""The rewrites that a program has registered besides symdnn's own; none at first."""

from __future__ import annotations

import threading

from symdnn.rewriting.rewrite import GraphRewrite, Rewrite

#: Replaced as a whole, so that a running compilation keeps the list that it has read.
_outside: tuple[Rewrite | GraphRewrite, ...] = ()
_lock = threading.Lock()


def outside() -> tuple[Rewrite | GraphRewrite, ...]:
    """The registered rewrites now, in order of arrival."""
    return _outside


def add(rule: Rewrite | GraphRewrite) -> bool:
    """Add ``rule``. Returns False, and adds nothing, if there is one of that name."""
    global _outside
    with _lock:
        if any(r.name == rule.name for r in _outside):
            return False
        _outside = (*_outside, rule)
    return True


def remove(name: str) -> bool:
    """Take out the rewrite ``name``; False if there is none."""
    global _outside
    with _lock:
        before = _outside
        _outside = tuple(r for r in before if r.name != name)
        return len(_outside) < len(before)
