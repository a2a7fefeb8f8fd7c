"""Generated names: ids of debugprint, and values of a listing."""

from __future__ import annotations

import string
from collections.abc import Iterator
from itertools import count, product
from typing import Any

from symdnn.graph.variable import Apply, Constant, Variable

#: The styles of ids: letters, numbers, Python's ``id``, or none.
ID_STYLES = ("CHAR", "int", "id", "")


class Ids:
    """Ids of nodes and leaves, in the order of their first use.

    ``known`` is filled on the way, so a second print with the same dict goes on where the first
    ended.
    """

    def __init__(self, style: str = "CHAR", known: dict[Any, str] | None = None) -> None:
        if style not in ID_STYLES:
            raise ValueError(f"ids={style!r}: wanted one of {', '.join(map(repr, ID_STYLES))}")
        self.style = style
        self.known = {} if known is None else known
        self._fresh = _numbers(style, len(self.known))

    def of(self, item: Apply | Variable) -> str:
        """The id of a node or leaf; a new id at its first use."""
        if item not in self.known:
            self.known[item] = str(id(item)) if self.style == "id" else next(self._fresh)
        return self.known[item]

    def text(self, item: Apply | Variable) -> str:
        """The id as printed: `` [id A]``, or nothing when ids are off."""
        shown = self.of(item)
        return f" [id {shown}]" if self.style else ""


def _numbers(style: str, used: int) -> Iterator[str]:
    source = _letters() if style == "CHAR" else map(str, count())
    for _ in range(used):
        next(source)
    return source


def _letters() -> Iterator[str]:
    """A, B, ..., Z, AA, AB, ..."""
    for length in count(1):
        for letters in product(string.ascii_uppercase, repeat=length):
            yield "".join(letters)


def leaf_text(v: Variable) -> str:
    """A variable without an owner as printed: its name, value, or type."""
    if isinstance(v, Constant) and v.name is None:
        kind = "Constant" if v.data.size <= 8 else ""
        return f"{kind}{{{v}}}" if kind else str(v)
    return str(v)


class ValueNames:
    """Distinct names of values in a listing: the user's names, else %0, %1, ..."""

    def __init__(self) -> None:
        self._names: dict[Variable, str] = {}
        self._taken: set[str] = set()
        self._numbers = count()

    def of(self, v: Variable) -> str:
        """The name of ``v``."""
        if isinstance(v, Constant) and v.name is None:
            return str(v)
        if v not in self._names:
            self._names[v] = self._fresh(v)
            self._taken.add(self._names[v])
        return self._names[v]

    def _fresh(self, v: Variable) -> str:
        if v.name is None:
            return f"%{next(self._numbers)}"
        return next(
            n for k in count(1) if (n := v.name if k == 1 else f"{v.name}#{k}") not in self._taken
        )
