"""A rewrite as a value: a pattern and what stands for it, or a function of one node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.op import Op
from symdnn.graph.operators import operator
from symdnn.graph.pattern import Match, Param, Pattern, PatternVar, match
from symdnn.graph.target import Target
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Variable, as_variable
from symdnn.ops.elemwise import Elemwise, apply_elemwise
from symdnn.ops.shape import dims_of

__all__ = ["Context", "GraphRewrite", "Rewrite", "graph_rewrite", "node_rewrite", "rewrite"]


@dataclass(frozen=True)
class Context:
    """What a rewrite may look at besides the node: the graph, the target, the flags."""

    fgraph: FunctionGraph
    target: Target
    deterministic: bool = False

    def only_user(self, v: Variable) -> bool:
        """Whether one node alone reads ``v`` and it is no output."""
        users = self.fgraph.clients.get(v, {})
        return len(users) == 1 and next(iter(users))[0] is not None


Result = Variable | Sequence[Variable | None] | None
NodeFunction = Callable[[Apply, Context], Result]


@dataclass(frozen=True)
class Rewrite:
    """One rewrite of one node.

    ``function`` returns what stands for the node's outputs (None: leave it alone) and changes
    nothing. ``ops`` are the op types it looks at; subclasses count. Order among rewrites of a
    phase carries no meaning. ``tags`` and the name switch it on and off.
    """

    name: str
    phase: str
    ops: tuple[type[Op], ...]
    function: NodeFunction
    tags: frozenset[str] = frozenset()
    text: str = field(default="", compare=False)

    def __call__(self, node: Apply, context: Context) -> Sequence[Variable | None] | None:
        """Replacements of the node's outputs, of their types exactly; None: not applicable."""
        result = self.function(node, context)
        if result is None:
            return None
        found = [result] if isinstance(result, Variable) else list(result)
        return [
            None if new is None else conform(new, old)
            for old, new in zip(node.outputs, found, strict=True)
        ]

    def __str__(self) -> str:
        return f"{self.name}: {self.text}" if self.text else self.name


@dataclass(frozen=True)
class GraphRewrite:
    """A rewrite that looks at the whole graph; runs once, before the node rewrites of its phase."""

    name: str
    phase: str
    function: Callable[[Context], None]
    tags: frozenset[str] = frozenset()


def rewrite(
    name: str,
    pattern: Any,
    result: Any,
    *,
    phase: str,
    tags: Iterable[str] = (),
    when: Callable[[Match], bool] | None = None,
    when_target: Callable[[Match, Target], bool] | None = None,
) -> Rewrite:
    """A rewrite from a pattern to a result, both built with the real ops.

    ``result`` may also be a function of the match. ``when`` must hold for the match,
    ``when_target`` for the match and the target.
    """

    def apply(node: Apply, context: Context) -> Result:
        found = Match()
        if not match(pattern, node.outputs[0], found):
            return None
        if when is not None and not when(found):
            return None
        if when_target is not None and not when_target(found, context.target):
            return None
        if isinstance(result, Pattern | int | float):
            return instantiate(result, found)
        return result(found)  # type: ignore[no-any-return]

    text = f"{pattern} -> {result}" if isinstance(result, Pattern | int | float) else str(pattern)
    return Rewrite(name, phase, (type(pattern.op),), apply, frozenset(tags), text)


def node_rewrite(
    *ops: type[Op], phase: str, tags: Iterable[str] = (), name: str | None = None
) -> Callable[[NodeFunction], Rewrite]:
    """Make a rewrite of a function of a node and its :class:`Context` (a decorator)."""

    def wrap(function: NodeFunction) -> Rewrite:
        text = (function.__doc__ or "").strip().split("\n")[0]
        return Rewrite(name or function.__name__, phase, ops, function, frozenset(tags), text)

    return wrap


def graph_rewrite(
    phase: str, tags: Iterable[str] = (), name: str | None = None
) -> Callable[[Callable[[Context], None]], GraphRewrite]:
    """Make a :class:`GraphRewrite` of a function of the :class:`Context` (a decorator)."""

    def wrap(function: Callable[[Context], None]) -> GraphRewrite:
        return GraphRewrite(name or function.__name__, phase, function, frozenset(tags))

    return wrap


def instantiate(result: Any, found: Match) -> Variable:
    """The variable that a result pattern describes, given what matched."""
    if isinstance(result, PatternVar):
        return found.variables[result.name]
    if not isinstance(result, Pattern) or result.op is None:
        return as_variable(getattr(result, "value", result))
    inputs = [instantiate(i, found) for i in result.inputs]
    op = _fill_params(result.op, found)
    if isinstance(op, Elemwise):
        return apply_elemwise(op, *inputs)  # type: ignore[no-any-return]
    return op(*inputs)  # type: ignore[no-any-return]


def _fill_params(op: Op, found: Match) -> Op:
    given = {
        f.name: found.params[value.name]
        for f in fields(op)  # type: ignore[arg-type]
        if isinstance(value := getattr(op, f.name), Param)
    }
    return replace(op, **given) if given else op  # type: ignore[type-var]


def conform(new: Variable, old: Variable) -> Variable:
    """``new`` with the dtype, ndim and static shape of ``old``, which it stands for.

    Dimensions along which ``new`` would have broadcast are filled out, so a rewrite may drop an
    operand without asking who was the larger one.
    """
    a, b = old.type, new.type
    if not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return new
    if b.dtype != a.dtype:
        new = operator("cast")(new, a.dtype)
    if b.ndim < a.ndim:
        new = operator("dimshuffle")(new, ("x",) * (a.ndim - b.ndim) + tuple(range(b.ndim)))
    wide = [x != 1 and y == 1 for x, y in zip(a.shape, new.type.shape)]
    if any(wide):
        return operator("alloc")(new, *dims_of(old))  # type: ignore[no-any-return]
    if any(x is not None and y is None for x, y in zip(a.shape, new.type.shape)):
        return operator("specify_type")(new, a)  # type: ignore[no-any-return]
    return new
