"""Whether two expressions are the same computation: Theano's ``is_same_graph``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from symdnn.graph.traverse import toposort
from symdnn.graph.variable import Constant, Variable

__all__ = ["equal_computations", "is_same_graph"]


class _Numbers:
    """A number for each computation: equal ones have the same number, in any graph."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def of(self, outputs: Sequence[Variable], given: Mapping[Variable, Any]) -> list[int]:
        """The numbers of ``outputs``; ``given`` maps inputs to their replacements."""
        found = {v: self._number(("given", what)) for v, what in given.items()}
        for node in toposort(outputs, found):
            inputs = tuple(self._leaf_or(found, v) for v in node.inputs)
            for v in node.outputs:
                found.setdefault(v, self._number((node.op, node.hints, inputs, v.index)))
        return [self._leaf_or(found, v) for v in outputs]

    def _leaf_or(self, found: dict[Variable, int], v: Variable) -> int:
        if v not in found:
            found[v] = self._number(v.key() if isinstance(v, Constant) else v)
        return found[v]

    def _number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


def equal_computations(
    xs: Sequence[Variable],
    ys: Sequence[Variable],
    in_xs: Iterable[Variable] | None = None,
    in_ys: Iterable[Variable] | None = None,
) -> bool:
    """Whether ``xs`` are computed as ``ys`` are, if each of ``in_xs`` corresponds to one of
    ``in_ys``. Any other input must be the same variable or an equal constant.
    """
    given_xs, given_ys = list(in_xs or ()), list(in_ys or ())
    types = [[v.type for v in vs] for vs in ([*xs, *given_xs], [*ys, *given_ys])]
    if len(xs) != len(ys) or types[0] != types[1]:
        return False
    numbers = _Numbers()
    of_xs = numbers.of(xs, {v: i for i, v in enumerate(given_xs)})
    return of_xs == numbers.of(ys, {v: i for i, v in enumerate(given_ys)})


def is_same_graph(
    var1: Variable,
    var2: Variable,
    givens: Mapping[Variable, Variable] | None = None,
    debug: bool = False,
) -> bool:
    """Whether two variables are the same computation, where ``givens`` pairs some inputs.

    ``debug`` is accepted for compatibility with Theano.
    """
    pairs = dict(givens or {})
    both = {v: i for i, pair in enumerate(pairs.items()) for v in pair}
    numbers = _Numbers()
    return numbers.of([var1], both) == numbers.of([var2], both)
