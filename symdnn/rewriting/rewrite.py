"""A rewrite as a value: a pattern and what stands for it, or a function of one node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic

from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.op import Op
from symdnn.graph.operators import operator
from symdnn.graph.pattern import (
    AnyOf,
    Makers,
    Match,
    Param,
    Pattern,
    PatternVar,
    matcher,
    may_match,
)
from symdnn.graph.target import Target
from symdnn.graph.type import OpaqueType
from symdnn.graph.typing import OpT
from symdnn.graph.variable import Apply, Variable, as_variable
from symdnn.ops.core.shape import ShapeI
from symdnn.ops.elemwise import Elemwise, apply_elemwise
from symdnn.rewriting.facts import ShapeFacts

__all__ = [
    "Context",
    "Family",
    "GraphRewrite",
    "Rewrite",
    "graph_rewrite",
    "node_rewrite",
    "reads",
    "rewrite",
]


@dataclass(frozen=True)
class Context:
    """What a rewrite may look at besides the node: the graph, the target, the flags, the shapes."""

    fgraph: FunctionGraph
    target: Target
    deterministic: bool = False
    #: Whether this is the graph inside of an op: the body of a loop.
    inner: bool = False
    shapes: ShapeFacts = field(default_factory=ShapeFacts, compare=False)

    def only_user(self, v: Variable) -> bool:
        """Whether one node alone reads ``v`` and it is no output."""
        users = self.fgraph.clients.get(v, {})
        return len(users) == 1 and next(iter(users))[0] is not None

    def replace(self, pairs: Iterable[tuple[Variable, Variable]], name: str) -> bool:
        """Replace several values at once, of their types exactly, for the rewrite ``name``.

        Nothing is replaced, and False the result, where one cannot be given its type.
        """
        conformed = [(old, conform(new, old, self)) for old, new in pairs]
        found = [(old, new) for old, new in conformed if new is not None]
        if len(found) == len(conformed):
            self.fgraph.replace_all(found, name)
        return len(found) == len(conformed)


Result = Variable | Sequence[Variable | None] | None
#: What stands for the outputs of a node of that op; None: nothing does.
NodeFunction = Callable[[Apply[OpT], Context], Result]
#: Asked once for each combination, of an op's type and what makes its inputs.
Admits = Callable[[type[Op], Makers], bool]
Condition = Callable[[Match], bool]


@dataclass(frozen=True)
class Rewrite(Generic[OpT]):
    """One rewrite of one node; ``Rewrite[Conv]`` is for nodes of :class:`Conv`.

    ``function`` returns what stands for the node's outputs (None: leave it alone) and changes
    nothing. ``ops`` are the op types it looks at; subclasses count. Order among rewrites of a
    phase carries no meaning. ``tags`` and the name switch it on and off.
    """

    name: str
    phase: str
    ops: tuple[type[Op], ...]
    function: NodeFunction[OpT]
    tags: frozenset[str] = frozenset()
    text: str = field(default="", compare=False)
    #: What it matches, where it was made of a pattern.
    pattern: Any = field(default=None, compare=False)
    #: Whether it may apply to a node of this op whose inputs these ops make; None: to any.
    admits: Admits | None = field(default=None, compare=False)
    #: The kind of target that it is for alone.
    target: str | None = None

    def __call__(self, node: Apply[OpT], context: Context) -> Sequence[Variable | None] | None:
        """Replacements of the node's outputs, of their types exactly; None: not applicable."""
        result = self.function(node, context)
        return None if result is None else self.conformed(result, node, context)

    def conformed(
        self, result: Variable | Sequence[Variable | None], node: Apply[OpT], context: Context
    ) -> Sequence[Variable | None]:
        """What the function returned, of the types of the node's outputs exactly."""
        found = [result] if isinstance(result, Variable) else list(result)
        return [
            None if new is None else conform(new, old, context)
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
    when: Condition | Sequence[Condition] = (),
    when_target: Callable[[Match, Target], bool] | None = None,
) -> Rewrite:
    """A rewrite from a pattern to a result, both built with the real ops.

    ``result`` may also be a function of the match. Each of ``when`` must hold for the match,
    ``when_target`` for the match and the target. A variable that the result leaves out must have
    a shape that the result vouches for, so no clash of shapes is ever hidden.
    """
    conditions = (when,) if callable(when) else tuple(when)
    kind, fits, matches = type(pattern.op), may_match(pattern), matcher(pattern)
    built = isinstance(result, Pattern | int | float)
    left_out = _names(pattern) - _names(result) if built else set()
    computes = isinstance(result, Pattern) and result.op is not None

    def apply(node: Apply, context: Context) -> Result:
        if type(node.op) is not kind:
            return None
        found = Match(node)
        if not matches(node.outputs[0], found) or not all(c(found) for c in conditions):
            return None
        if when_target is not None and not when_target(found, context.target):
            return None
        if not built:
            return result(found)  # type: ignore[no-any-return]
        if left_out and not _vouched_for(node, left_out, result, found, context):
            return None
        new = instantiate(result, found)
        # A real variable beside a complex constant: real ops do not compute the same.
        return None if computes and _is_real_for_complex(new, node) else new

    def admits(op: type[Op], made: Makers) -> bool:
        return op is kind and fits(made)

    text = f"{pattern} -> {result}" if built else str(pattern)
    return Rewrite(name, phase, (kind,), apply, frozenset(tags), text, pattern, admits)


def _is_real_for_complex(new: Variable, node: Apply) -> bool:
    return bool(node.outputs[0].type.is_complex and not new.type.is_complex)


def _names(pattern: Any) -> set[str]:
    """Names of the pattern variables in a pattern."""
    if isinstance(pattern, PatternVar):
        return {pattern.name}
    if isinstance(pattern, AnyOf):
        return {n for c in pattern.choices for n in _names(c)}
    if not isinstance(pattern, Pattern):
        return set()
    return {n for q in pattern.inputs for n in _names(q)}


def _vouched_for(
    node: Apply, left_out: set[str], result: Any, found: Match, context: Context
) -> bool:
    """Whether what is left out could not have clashed with what stays."""
    lost = [v for n, v in found.variables.items() if n in left_out and not v.type.is_static]
    if not lost:
        return True
    kept = [found.variables[n] for n in _names(result)]
    if not kept:
        return len(lost) == 1  # the only one that gives the result its shape
    return all(any(context.shapes.covers(k, v) for k in kept) for v in lost)


def node_rewrite(
    *ops: type[OpT],
    phase: str,
    tags: Iterable[str] = (),
    name: str | None = None,
    admits: Admits | None = None,
) -> Callable[[NodeFunction[OpT]], Rewrite[OpT]]:
    """Make a rewrite of a function of a node and its :class:`Context` (a decorator).

    ``admits`` says for which makers of its inputs a node need be looked at (:func:`reads`).
    """

    def wrap(function: NodeFunction[OpT]) -> Rewrite[OpT]:
        text = (function.__doc__ or "").strip().split("\n")[0]
        named = name or function.__name__
        return Rewrite(named, phase, ops, function, frozenset(tags), text, admits=admits)

    return wrap


def reads(*kinds: type, at: int | None = None) -> Admits:
    """Nodes of which some input, or that at the index ``at``, is made by one of these ops.

    Subclasses count; :class:`Constant` stands for constants.
    """

    def admits(op: type[Op], made: Makers) -> bool:
        looked_at = made if at is None else made[at : at + 1]
        return any(m is not None and issubclass(m, kinds) for m in looked_at)

    return admits


@dataclass(frozen=True)
class Family:
    """Rewrites that share a phase and tags, so that each can be one line."""

    phase: str
    tags: tuple[str, ...]

    def rule(
        self,
        name: str,
        pattern: Any,
        result: Any,
        *names: str,
        when: Condition | Sequence[Condition] = (),
    ) -> Rewrite:
        """A :func:`rewrite`; ``names`` are tags of its own, such as what Theano calls it."""
        tags = (*self.tags, *names)
        return rewrite(name, pattern, result, phase=self.phase, tags=tags, when=when)  # fmt: skip

    def on(
        self, *ops: type[OpT], names: Iterable[str] = (), admits: Admits | None = None
    ) -> Callable[[NodeFunction[OpT]], Rewrite[OpT]]:
        """A :func:`node_rewrite` of a function (a decorator)."""
        return node_rewrite(*ops, phase=self.phase, tags=(*self.tags, *names), admits=admits)


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
        return apply_elemwise(op, *inputs)
    return op(*inputs)


def _fill_params(op: Op, found: Match) -> Op:
    given = {
        f.name: found.params[value.name]
        for f in fields(op)  # type: ignore[arg-type]
        if isinstance(value := getattr(op, f.name), Param)
    }
    return replace(op, **given) if given else op  # type: ignore[type-var]


def conform(new: Variable, old: Variable, context: Context) -> Variable | None:
    """``new`` with the dtype, ndim and static shape of ``old``, which it stands for.

    Dimensions along which ``new`` would have broadcast are filled out, so a rewrite may drop an
    operand without asking who was the larger one. None where only ``old`` itself knows its sizes.
    """
    a, b = old.type, new.type
    if isinstance(a, OpaqueType) or isinstance(b, OpaqueType):
        return new
    if b.dtype != a.dtype:
        new = operator("cast")(new, a.dtype)
    if b.ndim < a.ndim:
        new = operator("dimshuffle")(new, ("x",) * (a.ndim - b.ndim) + tuple(range(b.ndim)))
    wide = [x != 1 and y == 1 for x, y in zip(a.shape, new.type.shape)]
    if any(wide):
        sizes = context.shapes.dims(old)
        if any(_size_of(d) is old for d in sizes):
            return None
        return operator("alloc")(new, *sizes)
    if any(x is not None and y is None for x, y in zip(a.shape, new.type.shape)):
        return operator("specify_type")(new, a)
    return new


def _size_of(d: Any) -> Variable | None:
    """The variable whose size ``d`` is."""
    owner = d.owner if isinstance(d, Variable) else None
    return owner.inputs[0] if owner is not None and isinstance(owner.op, ShapeI) else None
