"""Patterns: expressions over pattern variables, built with the real ops.

``Log()(Softmax(p.axis)(x))`` with ``x`` a pattern variable is the pattern of a log of a softmax;
``p.axis`` stands for any value of that field and gives it a name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from symdnn.graph.operators import TensorMethods
from symdnn.graph.variable import Constant, Variable

if TYPE_CHECKING:
    from symdnn.graph.op import Op
    from symdnn.graph.variable import Apply

__all__ = ["Match", "Pattern", "any_of", "const", "is_constant", "p", "pattern_vars"]


class Pattern(TensorMethods):
    """An op (some fields may be :class:`Param`) applied to patterns; operators build more."""

    def __init__(self, op: Op | None, inputs: tuple[Any, ...]) -> None:
        self.op = op
        self.inputs = inputs
        self.matcher: Matcher | None = None

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

    def __init__(self, choices: tuple[Pattern, ...]) -> None:
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
    for value in vars(op).values():  # noqa: SIM110 - a generator takes twice as long
        if type(value) is Param:
            return True
    return False


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

    def mark(self) -> tuple[int, int]:
        """The state before an alternative is tried, for :meth:`back_to`."""
        return len(self.variables), len(self.params)

    def back_to(self, mark: tuple[int, int]) -> None:
        """Forget what was matched since ``mark``."""
        variables, params = mark
        while len(self.variables) > variables:
            self.variables.popitem()
        while len(self.params) > params:
            self.params.popitem()


#: Whether a variable is an instance of a pattern; adds to the match, or leaves it as it was.
Matcher = Callable[[Variable, Match], bool]


def root_matcher(pattern: Pattern) -> Callable[[Match], bool]:
    """Whether the node of a match is an instance of a pattern, an op on patterns; fills the match.

    The node has the pattern's type of op. After False the match is of no use.
    """
    _, wanted, parts, turns = _taken_apart(pattern)
    count = len(parts)

    def matches(found: Match) -> bool:
        node = found.node
        if len(node.inputs) != count or len(node.outputs) != 1:
            return False
        if wanted and not _same_parameters(wanted, node.op, found):
            return False
        before = found.mark() if turns else None
        if _all_match(parts, node.inputs, found):
            return True
        if before is None:
            return False
        found.back_to(before)
        return _all_match(parts, node.inputs[::-1], found)

    return matches


def match(pattern: object, variable: Variable, found: Match) -> bool:
    """Whether ``variable`` is an instance of ``pattern``; fills ``found``."""
    return matcher(pattern)(variable, found)


def matcher(pattern: Any) -> Matcher:
    """:func:`match` for one pattern, which is analysed once."""
    if not isinstance(pattern, Pattern):
        return lambda variable, found: is_filled_with(variable, pattern)
    if pattern.matcher is None:
        pattern.matcher = _make_matcher(pattern)
    return pattern.matcher


def _make_matcher(pattern: Pattern) -> Matcher:
    if isinstance(pattern, PatternVar):
        return _binding(pattern.name, pattern.when)
    if isinstance(pattern, ConstPattern):
        value = pattern.value
        return lambda variable, found: is_filled_with(variable, value)
    if isinstance(pattern, AnyOf):
        return _one_of([matcher(c) for c in pattern.choices])
    return _applied(pattern)


def _binding(name: str, when: Callable[[Variable], bool] | None) -> Matcher:
    def bind(variable: Variable, found: Match) -> bool:
        if when is not None and not when(variable):
            return False
        return found.variables.setdefault(name, variable) is variable

    return bind


def _one_of(choices: Sequence[Matcher]) -> Matcher:
    def matches(variable: Variable, found: Match) -> bool:
        mark = found.mark()
        for choice in choices:
            if choice(variable, found):
                return True
            found.back_to(mark)
        return False

    return matches


def _applied(pattern: Pattern) -> Matcher:
    """The matcher of an op on patterns; those of an op with two orders may match in either."""
    kind, wanted, parts, turns = _taken_apart(pattern)
    fits, count = may_match(pattern), len(parts)

    def matches(variable: Variable, found: Match) -> bool:
        node = variable.owner
        if node is None or type(node.op) is not kind or not fits(makers(node)):
            return False
        inputs = node.inputs
        if len(inputs) != count or len(node.outputs) != 1:
            return False
        mark = found.mark()
        if not wanted or _same_parameters(wanted, node.op, found):
            before = found.mark()
            if _all_match(parts, inputs, found):
                return True
            found.back_to(before)
            if turns and _all_match(parts, inputs[::-1], found):
                return True
        found.back_to(mark)
        return False

    return matches


def _taken_apart(
    pattern: Pattern,
) -> tuple[type, list[tuple[str, Any]], list[Matcher], bool]:
    """The type of op, its fields, matchers of its inputs, and whether these may change places."""
    op: Any = pattern.op
    parts = [matcher(q) for q in pattern.inputs]
    turns = len(parts) == 2 and getattr(op, "commutative", False)
    return type(op), [(f.name, getattr(op, f.name)) for f in fields(op)], parts, turns


def _all_match(parts: Sequence[Matcher], inputs: Sequence[Variable], found: Match) -> bool:
    for part, v in zip(parts, inputs):  # noqa: SIM110 - a generator takes twice as long
        if not part(v, found):
            return False
    return True


def _same_parameters(wanted: Sequence[tuple[str, Any]], op: Op, found: Match) -> bool:
    for name, want in wanted:
        have = getattr(op, name)
        if isinstance(want, Param):
            if found.params.setdefault(want.name, have) != have:
                return False
        elif want != have:
            return False
    return True


#: The maker of each input of a node: a type of op, :class:`Constant`, or None for other leaves.
Makers = tuple[type | None, ...]


def makers(node: Apply) -> Makers:
    """The maker of each input of ``node``."""
    return tuple([
        type(v.owner.op) if v.owner is not None else Constant if isinstance(v, Constant) else None
        for v in node.inputs
    ])  # fmt: skip


def may_match(pattern: Pattern) -> Callable[[Makers], bool]:
    """A quick test of the makers of a node's inputs: whether the node may match the pattern."""
    needs = [(k, kinds) for k, q in enumerate(pattern.inputs) if (kinds := _made_by(q)) is not None]
    count = len(pattern.inputs)
    turned = [(count - 1 - k, kinds) for k, kinds in needs]
    turns = count == 2 and getattr(pattern.op, "commutative", False)

    def may(made: Makers) -> bool:
        if len(made) != count:
            return False
        return _made_so(made, needs) or (turns and _made_so(made, turned))

    return may


def _made_by(pattern: Any) -> frozenset[type] | None:
    """The makers of a variable that can match the pattern; None for any."""
    if isinstance(pattern, ConstPattern | int | float):
        return frozenset({Constant})
    if isinstance(pattern, PatternVar):
        return frozenset({Constant}) if pattern.when is is_constant else None
    if isinstance(pattern, AnyOf):
        found = [_made_by(q) for q in pattern.choices]
        return None if None in found else frozenset(kind for kinds in found for kind in kinds or ())
    return None if pattern.op is None else frozenset({type(pattern.op)})


def _made_so(made: Makers, needs: Sequence[tuple[int, frozenset[type]]]) -> bool:
    for k, kinds in needs:  # noqa: SIM110 - a generator takes twice as long
        if made[k] not in kinds:
            return False
    return True


def is_constant(v: Variable) -> bool:
    """Whether ``v`` is a constant."""
    return isinstance(v, Constant)


def is_filled_with(variable: Variable, value: float) -> bool:
    """Whether ``variable`` is a constant all of whose elements equal ``value`` (and has some)."""
    if not isinstance(variable, Constant) or variable.data.size == 0:
        return False
    if variable.exact is not None:  # the number before it was rounded to 16 bits
        return variable.exact == value
    if variable.data.flat[0] != value:
        return False
    return variable.data.size == 1 or bool(np.all(variable.data == value))
