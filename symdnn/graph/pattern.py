"""Patterns: expressions over pattern variables, built with the real ops.

``Log()(Softmax(p.axis)(x))`` with ``x`` a pattern variable is the pattern of a log of a softmax;
``p.axis`` stands for any value of that field and gives it a name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from symdnn.graph.operators import TensorMethods
from symdnn.graph.variable import Constant, Variable

if TYPE_CHECKING:
    from symdnn.graph.op import Op

__all__ = ["Match", "Pattern", "any_of", "const", "p", "pattern_vars"]


class Pattern(TensorMethods):
    """An op (some fields may be :class:`Param`) applied to patterns; operators build more."""

    def __init__(self, op: Op | None, inputs: tuple[Any, ...]) -> None:
        self.op = op
        self.inputs = inputs

    def __repr__(self) -> str:
        return f"{self.op}({', '.join(map(repr, self.inputs))})"


class PatternVar(Pattern):
    """Matches any variable; the same pattern variable twice must match the same variable."""

    def __init__(self, name: str, when: Callable[[Variable], bool] | None = None) -> None:
        super().__init__(None, ())
        self.name = name
        self.when = when

    def __repr__(self) -> str:
        return self.name


class ConstPattern(Pattern):
    """Matches a constant all of whose elements equal ``value`` (any shape and dtype)."""

    def __init__(self, value: float) -> None:
        super().__init__(None, ())
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


class AnyOf(Pattern):
    """Matches what one of several patterns matches, tried in order."""

    def __init__(self, choices: tuple[Any, ...]) -> None:
        super().__init__(None, ())
        self.choices = choices

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.choices))


class Param:
    """Stands for the value of one field of an op."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"p.{self.name}"


class _Params:
    def __getattr__(self, name: str) -> Any:
        return Param(name)


#: ``p.axis`` in a pattern is any value of that field, in a result the value that matched.
p: Any = _Params()


def pattern_vars(
    names: str, when: Callable[[Variable], bool] | None = None
) -> tuple[PatternVar, ...]:
    """Pattern variables by name: ``x, y = pattern_vars("x y")``; ``when`` must hold for each."""
    return tuple(PatternVar(n, when) for n in names.split())


def const(value: float) -> ConstPattern:
    """A constant filled with ``value``."""
    return ConstPattern(value)


def any_of(*choices: Any) -> AnyOf:
    """One of several patterns."""
    return AnyOf(choices)


def holds_pattern(op: Op) -> bool:
    """Whether a field of ``op`` is a :class:`Param`."""
    parameters: tuple[Any, ...] = fields(cast(Any, op)) if is_dataclass(op) else ()
    return any(isinstance(getattr(op, f.name), Param) for f in parameters)


class Match:
    """What a pattern matched: variables as ``m.x``, fields as ``m.params['axis']``.

    ``node`` is the node whose output is to be replaced.
    """

    def __init__(self, node: Any = None) -> None:
        self.node = node
        self.variables: dict[str, Variable] = {}
        self.params: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.variables[name]
        except KeyError:
            raise AttributeError(f"the pattern has no variable {name!r}") from None

    def fork(self) -> Match:
        """A copy to try an alternative with."""
        other = Match(self.node)
        other.variables, other.params = dict(self.variables), dict(self.params)
        return other


def match(pattern: Any, variable: Variable, found: Match) -> bool:
    """Whether ``variable`` is an instance of ``pattern``; fills ``found``."""
    if isinstance(pattern, PatternVar):
        return _bind(pattern, variable, found)
    if isinstance(pattern, ConstPattern):
        return is_filled_with(variable, pattern.value)
    if isinstance(pattern, int | float):
        return is_filled_with(variable, pattern)
    if isinstance(pattern, AnyOf):
        return _match_any(pattern, variable, found)
    node = variable.owner
    if node is None or len(node.outputs) != 1 or len(node.inputs) != len(pattern.inputs):
        return False
    if not _match_op(pattern.op, node.op, found):
        return False
    return _match_inputs(pattern, node.inputs, found)


def _match_inputs(pattern: Pattern, inputs: tuple[Variable, ...], found: Match) -> bool:
    orders = [inputs]
    if len(inputs) == 2 and getattr(pattern.op, "commutative", False):
        orders.append(inputs[::-1])
    for order in orders:
        attempt = found.fork()
        if all(match(q, v, attempt) for q, v in zip(pattern.inputs, order)):
            found.variables, found.params = attempt.variables, attempt.params
            return True
    return False


def _bind(pattern: PatternVar, variable: Variable, found: Match) -> bool:
    if pattern.when is not None and not pattern.when(variable):
        return False
    return found.variables.setdefault(pattern.name, variable) is variable


def _match_any(pattern: AnyOf, variable: Variable, found: Match) -> bool:
    for choice in pattern.choices:
        attempt = found.fork()
        if match(choice, variable, attempt):
            found.variables, found.params = attempt.variables, attempt.params
            return True
    return False


@cache
def _parameters(kind: type[Op]) -> tuple[str, ...]:
    """The names of an op's parameters."""
    return tuple(f.name for f in fields(cast(Any, kind)))


def _match_op(wanted: Any, op: Op, found: Match) -> bool:
    if type(wanted) is not type(op):
        return False
    for name in _parameters(cast(Any, type(op))):
        want, have = getattr(wanted, name), getattr(op, name)
        if isinstance(want, Param):
            if found.params.setdefault(want.name, have) != have:
                return False
        elif want != have:
            return False
    return True


def is_filled_with(variable: Variable, value: float) -> bool:
    """Whether ``variable`` is a constant all of whose elements equal ``value`` (and has some)."""
    if not isinstance(variable, Constant) or variable.data.size == 0:
        return False
    first = variable.data.flat[0]
    if first != value:
        return False
    return variable.data.size == 1 or bool(np.all(variable.data == value))
