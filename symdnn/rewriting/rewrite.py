"""Rewrites as values: a pattern with its replacement, or a function of one node or a graph."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic

from symdnn.graph.dims import Dim
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
    may_match,
    root_matcher,
)
from symdnn.graph.target import Target
from symdnn.graph.type import OpaqueType
from symdnn.graph.typing import OpT
from symdnn.graph.variable import Apply, Variable, as_variable
from symdnn.ops.core.shape import ShapeI
from symdnn.ops.elemwise import Elemwise, apply_elemwise
from symdnn.rewriting.facts import ShapeFacts, value_inputs


def _no_kernel(node: Apply, kind: str) -> str | None:
    return f"there is no {kind} kernel for {type(node.op).__name__}"


def _fuses_on_cuda(op: Op, kind: str) -> bool:
    return kind == "cuda"


def _none_own(node: Apply, kind: str) -> bool:
    return False


def _none_not_lowered(fgraph: FunctionGraph, target: Target, takes: Any) -> Mapping[Apply, str]:
    return {}


@dataclass(frozen=True)
class Capabilities:
    """What libraries and kernels can run; ``compile`` passes it to ``opt`` with the target.

    The answers follow from the target and from static types, without hardware: a program for
    ``cuda:sm_90`` is planned alike on any machine.

    ``rules`` are the libraries' rewrites. ``kernel_reason(node, kind)`` is the reason why no kernel
    of a kind of target takes a node, or None. ``fuses(op, kind)`` says whether that kind has good
    kernels for a fused op. ``not_lowered(fgraph, target, takes)`` has the nodes that a library
    could have run but does not, with reasons; ``takes`` says which rewrites are switched on.
    ``has_own_kernel(node, kind)`` says whether a kernel for just this op takes a node: references,
    which run any op, do not count.
    """

    rules: tuple[Rewrite | GraphRewrite, ...] = ()
    kernel_reason: Callable[[Apply, str], str | None] = _no_kernel
    fuses: Callable[[Op, str], bool] = _fuses_on_cuda
    not_lowered: Callable[[FunctionGraph, Target, Any], Mapping[Apply, str]] = _none_not_lowered
    has_own_kernel: Callable[[Apply, str], bool] = _none_own


#: No libraries, and no knowledge of kernels.
NO_CAPABILITIES = Capabilities()


@dataclass(frozen=True)
class Context:
    """What a rewrite may read besides the node: graph, target, shapes and capabilities."""

    fgraph: FunctionGraph
    target: Target
    deterministic: bool = False
    #: Whether the graph is inside of an op: the body of a loop.
    inner: bool = False
    shapes: ShapeFacts = field(default_factory=ShapeFacts, compare=False)
    #: What libraries and kernels of the target can run.
    capabilities: Capabilities = NO_CAPABILITIES

    def only_user(self, v: Variable) -> bool:
        """Whether ``v`` is read exactly once, by a node, and is no output of the graph."""
        users = self.fgraph.clients.get(v, {})
        return len(users) == 1 and next(iter(users))[0] is not None

    def sole_maker(self, v: Variable) -> Apply | None:
        """The node that makes ``v``, if ``v`` is read exactly once, by a node; else None."""
        return v.owner if self.only_user(v) else None

    def only_reader(self, v: Variable) -> bool:
        """Whether one node reads the value of ``v``, and it is no output. Sizes do not count."""
        readers = self._readers(v)
        return len(readers) == 1 and readers[0] is not None

    def read_by(self, v: Variable, nodes: Container[Apply]) -> bool:
        """Whether only these nodes read the value of ``v``. Sizes do not count."""
        return all(n is not None and n in nodes for n in self._readers(v))

    def unread(self, v: Variable) -> bool:
        """Whether nothing reads the value of ``v``, and it is no output. Sizes do not count."""
        return not self._readers(v)

    def _readers(self, v: Variable) -> list[Apply | None]:
        clients = self.fgraph.clients.get(v, {})
        return [n for n, i in clients if n is None or i < len(value_inputs(n))]

    def replace(self, pairs: Iterable[tuple[Variable, Variable]], name: str) -> bool:
        """Replace several values at once for the rewrite ``name``; whether that was done.

        New values are converted to the types of the old ones. If that is impossible for one of
        them, nothing is replaced and the result is False.
        """
        conformed = [(old, conform(new, old, self)) for old, new in pairs]
        found = [(old, new) for old, new in conformed if new is not None]
        if len(found) == len(conformed):
            self.fgraph.replace_all(found, name)
        return len(found) == len(conformed)


Result = Variable | Sequence[Variable | None] | None
NodeFunction = Callable[[Apply[OpT], Context], Result]
#: Whether a rewrite may apply, by the op's type and the types of the ops that make its inputs.
#: Answers are cached.
Admits = Callable[[type[Op], Makers], bool]
Condition = Callable[[Match], bool]


@dataclass(frozen=True)
class Rewrite(Generic[OpT]):
    """One rewrite of one node.

    ``function`` returns replacements of the node's outputs, or None to leave the node as it is. It
    changes nothing itself. ``ops`` are the op types that it applies to, with their subclasses. The
    order of the rewrites of a phase has no meaning, but for a last resort. ``tags`` and the name
    switch it on and off.
    """

    name: str
    phase: str
    ops: tuple[type[Op], ...]
    function: NodeFunction[OpT]
    tags: frozenset[str] = frozenset()
    text: str = field(default="", compare=False)
    #: The pattern of the left side, for rewrites made by :func:`rewrite`.
    pattern: Any = field(default=None, compare=False)
    #: A quick test whether it may apply to a node; None: to any node of ``ops``.
    admits: Admits | None = field(default=None, compare=False)
    #: The only kind of target that it is for; None: for all.
    target: str | None = None
    #: Whether it is tried on a node only after all rewrites of the phase that are no last resort.
    last_resort: bool = False

    def __hash__(self) -> int:
        return hash(self.name)  # each compilation asks those of all rewrites

    def __call__(self, node: Apply[OpT], context: Context) -> Sequence[Variable | None] | None:
        """Replacements of the node's outputs with equal types; None if it does not apply."""
        result = self.function(node, context)
        return None if result is None else self.conformed(result, node, context)

    def conformed(
        self, result: Variable | Sequence[Variable | None], node: Apply[OpT], context: Context
    ) -> Sequence[Variable | None]:
        """The function's result, converted to the types of the node's outputs."""
        found = [result] if isinstance(result, Variable) else list(result)
        return [
            None if new is None else conform(new, old, context)
            for old, new in zip(node.outputs, found, strict=True)
        ]

    def __str__(self) -> str:
        return f"{self.name}: {self.text}" if self.text else self.name


@dataclass(frozen=True)
class GraphRewrite:
    """A rewrite of a whole graph. It runs once, before the node rewrites of its phase."""

    name: str
    phase: str
    function: Callable[[Context], None]
    tags: frozenset[str] = frozenset()

    def __hash__(self) -> int:
        return hash(self.name)


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
    ``when_target`` for the match and the target. If the result drops a variable, the remaining ones
    must be known to have its sizes, so that no mismatch of shapes is hidden.
    """
    conditions = (when,) if callable(when) else tuple(when)
    kind, fits, matches = type(pattern.op), may_match(pattern), root_matcher(pattern)
    built = isinstance(result, Pattern | int | float)
    left_out = _variable_names(pattern) - _variable_names(result) if built else set()
    computes = isinstance(result, Pattern) and result.op is not None

    def apply(node: Apply, context: Context) -> Result:
        if type(node.op) is not kind:
            return None
        found = Match(node)
        if not matches(found):
            return None
        for condition in conditions:
            if not condition(found):
                return None
        if when_target is not None and not when_target(found, context.target):
            return None
        if not built:
            return result(found)  # type: ignore[no-any-return]
        if left_out and not _sizes_match(left_out, result, found, context):
            return None
        new = instantiate(result, found)
        # A real variable beside a complex constant: real ops would give another value.
        return None if computes and _is_real_for_complex(new, node) else new

    def admits(op: type[Op], made: Makers) -> bool:
        return op is kind and fits(made)

    text = f"{pattern} -> {result}" if built else str(pattern)
    return Rewrite(name, phase, (kind,), apply, frozenset(tags), text, pattern, admits)


def _is_real_for_complex(new: Variable, node: Apply) -> bool:
    return bool(node.outputs[0].type.is_complex and not new.type.is_complex)


def _variable_names(pattern: object) -> set[str]:
    """Names of the pattern variables in a pattern."""
    if isinstance(pattern, PatternVar):
        return {pattern.name}
    if isinstance(pattern, AnyOf):
        return {n for c in pattern.choices for n in _variable_names(c)}
    if not isinstance(pattern, Pattern):
        return set()
    return {n for q in pattern.inputs for n in _variable_names(q)}


def _sizes_match(left_out: set[str], result: Any, found: Match, context: Context) -> bool:
    """Whether the sizes of dropped variables are known to match those of remaining ones."""
    lost = [v for n, v in found.variables.items() if n in left_out and not v.type.is_static]
    if not lost:
        return True
    kept = [found.variables[n] for n in _variable_names(result)]
    if not kept:
        return len(lost) == 1  # a single variable cannot mismatch
    return all(any(context.shapes.covers(k, v) for k in kept) for v in lost)


def node_rewrite(
    *ops: type[OpT],
    phase: str,
    tags: Iterable[str] = (),
    name: str | None = None,
    admits: Admits | None = None,
    last_resort: bool = False,
    target: str | None = None,
) -> Callable[[NodeFunction[OpT]], Rewrite[OpT]]:
    """A decorator that makes a rewrite from a function of a node and its :class:`Context`.

    Its phase, tags, name, quick test, ``last_resort`` and target are those of :class:`Rewrite`. The
    name is the function's unless ``name`` is set. For ``admits`` see :func:`reads`.
    """

    def wrap(function: NodeFunction[OpT]) -> Rewrite[OpT]:
        text = (function.__doc__ or "").strip().split("\n")[0]
        named = name or function.__name__
        return Rewrite(
            named, phase, ops, function, frozenset(tags), text,
            admits=admits, last_resort=last_resort, target=target,
        )  # fmt: skip

    return wrap


def reads(*kinds: type, at: int | None = None) -> Admits:
    """A quick test for nodes with an input made by one of these ops, or the input at index ``at``.

    Subclasses count. :class:`Constant` stands for constants.
    """

    def admits(op: type[Op], made: Makers) -> bool:
        looked_at = made if at is None else made[at : at + 1]
        return any(m is not None and issubclass(m, kinds) for m in looked_at)

    return admits


@dataclass(frozen=True)
class Family:
    """Makes rewrites that share a phase and tags, so that each is one line."""

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
        """A :func:`rewrite`; ``names`` are further tags, such as Theano's name for it."""
        tags = (*self.tags, *names)
        return rewrite(name, pattern, result, phase=self.phase, tags=tags, when=when)  # fmt: skip

    def on(
        self, *ops: type[OpT], names: Iterable[str] = (), admits: Admits | None = None
    ) -> Callable[[NodeFunction[OpT]], Rewrite[OpT]]:
        """:func:`node_rewrite` with this phase and these tags: a decorator."""
        return node_rewrite(*ops, phase=self.phase, tags=(*self.tags, *names), admits=admits)


def graph_rewrite(
    phase: str, tags: Iterable[str] = (), name: str | None = None
) -> Callable[[Callable[[Context], None]], GraphRewrite]:
    """A decorator that makes a :class:`GraphRewrite` from a function of the :class:`Context`."""

    def wrap(function: Callable[[Context], None]) -> GraphRewrite:
        return GraphRewrite(name or function.__name__, phase, function, frozenset(tags))

    return wrap


def instantiate(result: object, found: Match) -> Variable:
    """The variable that a result pattern describes for a match."""
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
    """``new`` with the dtype, ndim and static shape of ``old``, which it replaces.

    Dimensions of size 1 in ``new`` only are broadcast, so a rewrite may drop the larger operand.
    None where the size to broadcast to is known only from ``old`` itself.
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


def _size_of(d: Dim) -> Variable | None:
    """The variable of which ``d`` is a size; None for other values."""
    owner = d.owner if isinstance(d, Variable) else None
    return owner.inputs[0] if owner is not None and isinstance(owner.op, ShapeI) else None
