"""Checks that sizes of one name are equal when a function is called with new shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from symdnn.errors import ArgumentShapeMismatch
from symdnn.graph.names.dim import Dim, one_for_each
from symdnn.graph.variable import Variable

#: The most combinations of sizes that are remembered as checked.
_MAX_CHECKED_COMBINATIONS = 1024


class _NamedAxis(NamedTuple):
    """An axis with a name, its variable, and the variable's text in errors."""

    variable: Variable
    text: str
    axis: int
    dim: Dim


class NamedSizes:
    """The axes of a function's inputs and shared variables that have names in common.

    ``entering`` has each variable with the user's variable, whose type has the names, and its text
    in errors.
    """

    def __init__(
        self, function_name: str, entering: Iterable[tuple[Variable, Variable, str]]
    ) -> None:
        places = [
            _NamedAxis(v, text, axis, dim)
            for v, users, text in entering
            for axis, dim in enumerate(users.type.names or ())
            if dim is not None
        ]
        sizes = one_for_each(p.dim for p in places)
        groups = [[p for p in places if p.dim.agrees(d)] for d in sizes]
        self.function_name = function_name
        self.groups = [(d, g) for d, g in zip(sizes, groups) if len(g) > 1]
        self._read = [(p.variable, p.axis) for _, g in self.groups for p in g]
        self._seen: set[tuple[int, ...]] = set()

    def __bool__(self) -> bool:
        return bool(self.groups)

    def check(self, values: Mapping[Variable, Any]) -> None:
        """Raise :class:`~symdnn.errors.ArgumentShapeMismatch` where sizes of one name differ."""
        found = tuple([np.shape(values[v])[axis] for v, axis in self._read])
        if found in self._seen:
            return
        rest = iter(found)
        for dim, places in self.groups:
            sizes = [next(rest) for _ in places]
            if len(set(sizes)) > 1:
                raise ArgumentShapeMismatch(self._text(dim, places, sizes))
        if len(self._seen) >= _MAX_CHECKED_COMBINATIONS:
            self._seen.clear()
        self._seen.add(found)

    def _text(self, dim: Dim, places: Sequence[_NamedAxis], sizes: Sequence[int]) -> str:
        each = ", ".join(f"{p.text} has {n} in axis {p.axis}" for p, n in zip(places, sizes))
        return (
            f"{self.function_name}: wanted one size {dim}, got {sorted(set(sizes))}: {each}. "
            "Pass arrays of equal sizes. A size that may differ needs another name; one that "
            "broadcasts is 1 in the type"
        )
