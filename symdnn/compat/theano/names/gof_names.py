"""Names of ``theano.gof``: graphs, ops, types."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from symdnn import rewrites
from symdnn.compat.theano.names.compile_names import optdb
from symdnn.compat.theano.names.types import (
    DisconnectedType,
    FunctionGraph,
    Generic,
    NullType,
    TensorConstant,
    generic,
    null_type,
)
from symdnn.compat.theano.names.types import OwnType as Type
from symdnn.compat.theano.names.user_ops import (
    Apply,
    MethodNotDefined,
    Op,
    PureOp,
    ViewOp,
)
from symdnn.compat.theano.settings import config
from symdnn.errors import GraphError as CycleError
from symdnn.errors import GraphError as InconsistencyError
from symdnn.errors import MissingInputError
from symdnn.graph import traverse
from symdnn.graph.op import Op as SymdnnOp
from symdnn.graph.same import equal_computations
from symdnn.graph.same import is_same_graph as _is_same_graph
from symdnn.graph.traverse import clone as _clone
from symdnn.graph.typing import TensorLike
from symdnn.graph.values.storage import Storage as Container
from symdnn.graph.variable import Apply as _Node
from symdnn.graph.variable import Constant, Variable

__all__ = [
    "Apply", "Constant", "Container", "CycleError", "DisconnectedType", "FunctionGraph",
    "Generic", "InconsistencyError", "LocalOptimizer", "MethodNotDefined", "MissingInputError",
    "NullType", "Op", "OpRemove", "PureOp", "TensorConstant", "Type", "Variable", "ancestors",
    "as_string", "clone",
    "clone_get_equiv", "config", "equal_computations", "fgraph", "flatten", "general_toposort",
    "generic", "hashtype", "inputs", "io_toposort", "is_in_ancestors", "is_same_graph",
    "list_of_nodes", "local_optimizer", "memoize", "null_type", "op_as_string", "ops", "optdb",
    "orphans",
    "register_canonicalize", "register_specialize", "register_stabilize", "remove",
    "stack_search", "subsets", "uniq", "unique", "variables", "variables_and_orphans",
    "view_roots",
]  # fmt: skip

hashtype = type
object2 = object


def inputs(variable_list: Iterable[Variable], blockers: Iterable[Variable] | None = None) -> Any:
    """Variables without an owner above ``variable_list``, constants too, in Theano's order."""
    return traverse.graph_inputs(variable_list, blockers or ())


graph_inputs = inputs


def ancestors(
    variable_list: Iterable[Variable], blockers: Iterable[Variable] | None = None
) -> list[Variable]:
    """All variables above ``variable_list``, themselves included, nearest first.

    Depth first, the last of ``variable_list`` first, as Theano's.
    """
    return traverse.depth_first(variable_list, blockers or ())


def ops(i: Iterable[Variable], o: Iterable[Variable]) -> set[_Node]:
    """The nodes between inputs ``i`` and outputs ``o``, as a set."""
    return set(traverse.toposort(o, set(i)))


def io_toposort(inputs: Iterable[Variable], outputs: Iterable[Variable], **words: object) -> Any:
    """The nodes between inputs and outputs, in a topological order."""
    return traverse.toposort(outputs, set(inputs))


def general_toposort(r_out: Iterable[Variable], deps: object = None, **words: object) -> list[Any]:
    """Variables and nodes above ``r_out`` in a topological order."""
    found: list[Any] = []
    for node in traverse.toposort(r_out):
        found += [v for v in node.inputs if v not in found and v.owner is None]
        found += [node, *node.outputs]
    return found


def list_of_nodes(inputs: Iterable[Variable], outputs: Iterable[Variable]) -> list[_Node]:
    """The nodes between inputs and outputs."""
    return traverse.toposort(outputs, set(inputs))


def variables(i: Iterable[Variable], o: Iterable[Variable]) -> list[Variable]:
    """The variables between inputs ``i`` and outputs ``o``, both included."""
    return traverse.ancestors(o, set(i))


def orphans(i: Iterable[Variable], o: Iterable[Variable]) -> list[Variable]:
    """Variables without an owner that ``o`` need and that are not in ``i``."""
    given = set(i)
    return [v for v in traverse.ancestors(o, given) if v.owner is None and v not in given]


def variables_and_orphans(i: Iterable[Variable], o: Iterable[Variable]) -> Any:
    """``(variables(i, o), orphans(i, o))``."""
    return variables(i, o), orphans(i, o)


def view_roots(r: Variable) -> list[Variable]:
    """The variables whose memory ``r`` may be a view of."""
    if r.owner is None or r.index is None or r.index not in r.owner.op.views:
        return [r]
    return view_roots(r.owner.inputs[r.owner.op.views[r.index]])


def clone(i: Sequence[Variable], o: Sequence[Variable], copy_inputs: bool = True) -> Any:
    """Copies ``(inputs, outputs)`` of a graph."""
    new = [v.clone() for v in i] if copy_inputs else list(i)
    return new, _clone(list(o), dict(zip(i, new)), strict=False)


def clone_get_equiv(
    inputs: Sequence[Variable],
    outputs: Sequence[Variable],
    copy_inputs: bool = True,
    **words: object,
) -> dict[Any, Any]:
    """A dict from each variable of a graph to its copy."""
    wanted = [v for v in traverse.ancestors(outputs, set(inputs)) if v.owner is not None]
    new = [v.clone() for v in inputs] if copy_inputs else list(inputs)
    memo = dict(zip(inputs, new))
    copies = _clone([*wanted, *outputs], memo, strict=False)
    return {**memo, **dict(zip([*wanted, *outputs], copies))}


def is_same_graph(var1: Variable, var2: Variable, givens: Any = None, debug: bool = False) -> bool:
    """Whether two expressions compute the same, ``givens`` being replaced in both."""
    return _is_same_graph(var1, var2, givens)


def is_in_ancestors(l_node: _Node, f_node: _Node) -> bool:
    """Whether the node ``f_node`` is above ``l_node``, or is it."""
    return f_node is l_node or f_node in traverse.toposort(l_node.inputs)


def difference(seq1: Sequence[Any], seq2: Sequence[Any]) -> list[Any]:
    """The entries of ``seq1`` that ``seq2`` lacks."""
    return [v for v in seq1 if v not in seq2]


def hist(coll: Iterable[Any]) -> dict[Any, int]:
    """How often each entry occurs."""
    found: dict[Any, int] = {}
    for item in coll:
        found[item] = found.get(item, 0) + 1
    return found


def give_variables_names(variables: Iterable[Variable]) -> list[str]:
    """Give the variables names of their own, ``name_i``; those names."""
    found = []
    for i, v in enumerate(variables):
        v.name = (v.name or "") + f"_{i}"
        found.append(v.name)
    return found


def add_tag_trace(thing: object, user_line: object = None) -> Any:
    """``thing``: where a variable was made is kept anyway."""
    return thing


MetaObject = object


def stack_search(start: Any, expand: Any, mode: str = "bfs", build_inv: bool = False) -> list[Any]:
    """What ``expand`` reaches from ``start``, each once, breadth (``bfs``) or depth first."""
    return list(walk(start, expand, mode == "bfs", hash_fn=lambda item: item))


def walk(
    nodes: Iterable[Any], expand: Any, bfs: bool = True, return_children: bool = False,
    hash_fn: Any = id,
) -> Iterable[Any]:  # fmt: skip
    """What ``expand`` reaches from ``nodes``, each once, as Theano-PyMC's iterator."""
    left, seen = deque(nodes), set[Any]()
    while left:
        node = left.popleft() if bfs else left.pop()
        if hash_fn(node) in seen:
            continue
        seen.add(hash_fn(node))
        children = expand(node)
        yield (node, children) if return_children else node
        left.extend(children or ())


def as_string(i: Sequence[Variable], o: Sequence[Variable], **words: object) -> list[str]:
    """The outputs of a graph as text."""
    from symdnn.printing import pp

    return [pp(v) for v in o]


def op_as_string(i: Sequence[Variable], op: object, **words: object) -> str:
    """A node as text."""
    return str(op)


def nodes_constructed() -> Any:
    """Theano's observer of new nodes."""
    raise AttributeError("gof.graph.nodes_constructed is not offered: walk the graph afterwards")


def flatten(a: TensorLike) -> list[Any]:
    """The entries of nested lists, tuples and sets."""
    if isinstance(a, list | tuple | set):
        return [x for item in a for x in flatten(item)]
    return [a]


def unique(x: Sequence[Any]) -> bool:
    """Whether no entry occurs twice."""
    return len(set(x)) == len(x)


def uniq(seq: Iterable[Any]) -> list[Any]:
    """The entries, each once, in their order."""
    return list(dict.fromkeys(seq))


def remove(predicate: Any, coll: Iterable[Any]) -> list[Any]:
    """The entries of which ``predicate`` is not true."""
    return list(itertools.filterfalse(predicate, coll))


def subsets(items: Sequence[Any]) -> Iterable[Any]:
    """All subsets, as tuples."""
    return itertools.chain.from_iterable(
        itertools.combinations(items, n) for n in range(len(items) + 1)
    )


def memoize(f: Any) -> Any:
    """A function that keeps its results."""
    return functools.cache(f)


def deprecated(filename: str, msg: str = "") -> Any:
    """A decorator that warns when the function is called."""

    def decorate(f: Any) -> Any:
        @functools.wraps(f)
        def wrapped(*args: object, **words: Any) -> Any:
            text = f"{filename}: {f.__name__} is deprecated. {msg}"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            return f(*args, **words)

        return wrapped

    return decorate


class TestValueError(AttributeError):
    """A variable has no test value (Theano-PyMC's name)."""

    __test__ = False  # pytest takes it for a class of tests


def get_test_value(v: object) -> Any:
    """The test value of a variable, or the value of a constant."""
    from symdnn.compat.theano.names.top import get_debug_values

    for (value,) in get_debug_values(v):
        return value
    raise TestValueError(f"{v} has no test value")


def get_debug_values(*args: object) -> Any:
    """The test values of ``args`` as a tuple in an iterator, which is empty if one has none."""
    from symdnn.compat.theano.names import top

    return top.get_debug_values(*args)


class OpRemove:
    """Theano's rewrite that drops an op, which programs register for their own identities
    (``register_canonicalize(OpRemove(GradClip), name=...)``).

    Ops derived from ``ViewOp`` are dropped anyway. Raises ``TypeError`` for others.
    """

    def __init__(self, op: Any) -> None:
        kind = op if isinstance(op, type) else type(op)
        if not issubclass(kind, ViewOp):
            from symdnn.compat.theano.absent import advice

            raise TypeError(f"OpRemove({op}): {advice('theano.gof.OpRemove')}")
        self.op = op


class LocalOptimizer:
    """Theano's rewrite of single nodes, registered as one of :mod:`symdnn.rewrites`.

    ``transform(node)`` returns the variables that replace the node's outputs, or False. ``tracks``
    are the ops and classes of ops that it is called for; None is all.
    """

    _function: Any = None
    _tracks: Sequence[Any] | None = None

    def __init__(self, function: Any = None, tracks: Sequence[Any] | None = None) -> None:
        self._function, self._tracks = function, tracks
        self.__name__ = getattr(function, "__name__", type(self).__name__)
        self.__doc__ = getattr(function, "__doc__", None) or "A rewrite of the program."

    def tracks(self) -> Sequence[Any] | None:
        """The ops and classes of ops."""
        return self._tracks

    def transform(self, node: Any) -> Any:
        """The replacements of a node's outputs, or False."""
        return self._function(node) if self._function else False

    def __call__(self, node: _Node, context: object = None) -> Sequence[Variable] | None:
        tracked = self.tracks()
        if tracked is not None and not any(_is_of(node.op, op) for op in tracked):
            return None
        return self.transform(node) or None


def _is_of(op: object, tracked: Any) -> bool:
    return isinstance(op, tracked) if isinstance(tracked, type) else op == tracked


def local_optimizer(
    tracks: Sequence[Any] | None, inplace: bool = False, requirements: object = ()
) -> Any:
    """A decorator that makes a :class:`LocalOptimizer` of a function of a node."""
    return functools.partial(LocalOptimizer, tracks=tracks)


def _registers(phase: str) -> Any:
    def register(rule: Any, *tags: Any, name: str | None = None, **words: object) -> Any:
        """Let an :class:`OpRemove` or a :class:`LocalOptimizer` take part in compiling.

        Raises ``TypeError`` for another rewrite of a program's own.
        """
        if isinstance(rule, str):  # @register_canonicalize("tag")
            return lambda inner: register(inner, rule, *tags, name=name)
        if isinstance(rule, OpRemove):
            return rule
        if not isinstance(rule, LocalOptimizer):
            from symdnn.compat.theano.absent import advice

            raise TypeError(f"{rule!r:.80}: {advice('theano.gof.PatternSub')}")
        words_of_rule = [t for t in tags if isinstance(t, str)]
        made = rewrites.node_rewrite(
            SymdnnOp,
            phase=phase,
            tags=words_of_rule,
            name=name or getattr(rule, "__name__", type(rule).__name__),
        )(rule)
        rewrites.register(made)
        return rule

    return register


register_canonicalize = register_useless = _registers("canonicalize")
register_stabilize = register_specialize = _registers("stabilize")
register_uncanonicalize = register_specialize_device = _registers("stabilize")


def fgraph(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> FunctionGraph:
    """A graph of its own from inputs to outputs."""
    return FunctionGraph(inputs, outputs)
