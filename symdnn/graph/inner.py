"""A graph inside of an op, such as a step of a scan or the definition of an ``OpFromGraph``.

It compares, hashes and pickles by its structure, so that it can be a field of a frozen op.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from symdnn.errors import GraphError
from symdnn.graph.evaluate import evaluate_node
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.op import MultiOp
from symdnn.graph.origin import Written
from symdnn.graph.traverse import clone_graph
from symdnn.graph.type import Type
from symdnn.graph.variable import Apply, Constant, Variable

__all__ = ["InnerGraph", "InnerGraphOp"]


class InnerGraph:
    """``outputs`` as a function of ``inputs``: a private copy that never changes.

    Equal subgraphs are merged. Two inner graphs are equal if their nodes, constants and input types
    are; names and the user's lines do not count.

    Raises :class:`~symdnn.errors.GraphError` if it reads a shared variable that is no input, and
    :class:`~symdnn.errors.MissingInputError` for other free variables.
    """

    __slots__ = (
        "_hash", "_key", "host_callback", "inputs", "nodes", "ordered", "outputs", "unmergeable",
    )  # fmt: skip

    def __init__(self, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> None:
        fgraph = FunctionGraph(inputs, outputs)
        # Names of sizes are dropped here. The shape rules carry those of the variables that it is
        # applied to.
        for v in fgraph.variables:
            if v.type.names is not None:
                v.type = v.type.with_names(None)
        if shared := fgraph.shared():
            raise GraphError(f"an inner graph reads the shared variable {shared[0]}: not an input")
        self._settle(fgraph.inputs, fgraph.toposort(), fgraph.outputs)

    def _settle(
        self, inputs: Sequence[Variable], nodes: Sequence[Apply], outputs: Sequence[Variable]
    ) -> None:
        self.inputs, self.outputs, self.nodes = tuple(inputs), tuple(outputs), tuple(nodes)
        self._key = _structure(self.inputs, self.nodes, self.outputs)
        self._hash = hash(self._key)
        #: The effects of the ops inside.
        self.host_callback = any(n.op.host_callback for n in nodes)
        self.unmergeable = any(n.op.unmergeable for n in nodes)
        self.ordered = any(n.op.ordered for n in nodes)

    @property
    def input_types(self) -> list[Type]:
        """Types of the inputs."""
        return [v.type for v in self.inputs]

    @property
    def output_types(self) -> list[Type]:
        """Types of the outputs."""
        return [v.type for v in self.outputs]

    def apply(self, inputs: Sequence[Variable], within: Written = ()) -> list[Variable]:
        """The outputs as an expression of ``inputs``, node by node.

        ``within`` is the order number of the node that the outputs replace.
        """
        given = dict(zip(self.inputs, inputs, strict=True))
        memo = clone_graph(self.outputs, given, within=within, order=self.nodes)
        return [memo[v] for v in self.outputs]

    def open(self) -> tuple[list[Variable], list[Variable]]:
        """Fresh input variables, and the outputs as an expression of them."""
        inputs = [v.clone() for v in self.inputs]
        return inputs, self.apply(inputs)

    def compute(self, values: Sequence[Any]) -> list[Any]:
        """Values of the outputs by the references of the nodes."""
        known: dict[Variable, Any] = dict(zip(self.inputs, values, strict=True))
        for node in self.nodes:
            arguments = [_value(v, known) for v in node.inputs]
            known.update(zip(node.outputs, evaluate_node(node, arguments), strict=True))
        return [_value(v, known) for v in self.outputs]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, InnerGraph):
            return NotImplemented
        return self is other or (self._hash == other._hash and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (_flat(self),)  # flat, so that a deep graph needs no deep recursion

    def __deepcopy__(self, memo: dict[int, object]) -> InnerGraph:
        return self

    def __str__(self) -> str:
        return f"{len(self.inputs)} -> {len(self.outputs)}, {len(self.nodes)} nodes"

    def __repr__(self) -> str:
        return f"InnerGraph({self})"


class InnerGraphOp(MultiOp):
    """Base of ops that hold a graph: they have the effects that are in it."""

    abstract: ClassVar[bool] = True

    inner: InnerGraph

    @property
    def inputs(self) -> Sequence[Variable]:
        """The inputs of its graph."""
        return self.inner.inputs

    @property
    def outputs(self) -> Sequence[Variable]:
        """The outputs of its graph."""
        return self.inner.outputs

    @property
    def host_callback(self) -> bool:
        return self.inner.host_callback

    @property
    def unmergeable(self) -> bool:
        return self.inner.unmergeable

    @property
    def ordered(self) -> bool:
        return self.inner.ordered


def _value(v: Variable, known: dict[Variable, Any]) -> Any:
    return v.data if isinstance(v, Constant) else known[v]


def _structure(
    inputs: Sequence[Variable], nodes: Sequence[Apply], outputs: Sequence[Variable]
) -> tuple[Any, ...]:
    """Nodes in order, each variable by its number and each constant by its value."""
    number: dict[Variable, int] = {v: i for i, v in enumerate(inputs)}

    def name(v: Variable) -> Any:
        return v.key() if isinstance(v, Constant) else number[v]

    entries = []
    for node in nodes:
        entries.append((node.op, tuple(name(v) for v in node.inputs), node.hints))
        for v in node.outputs:
            number[v] = len(number)
    types = tuple(v.type for v in inputs)
    return types, tuple(entries), tuple(name(v) for v in outputs)


_Flat = tuple[list[Any], list[Any], list[Any]]


def _flat(graph: InnerGraph) -> _Flat:
    number: dict[Variable, int] = {v: i for i, v in enumerate(graph.inputs)}

    def name(v: Variable) -> Any:
        return v if isinstance(v, Constant) else number[v]

    nodes = []
    for n in graph.nodes:
        outs = [(v.type, v.name) for v in n.outputs]
        nodes.append((n.op, [name(v) for v in n.inputs], outs, n.origin, n.hints))
        for v in n.outputs:
            number[v] = len(number)
    return [(v.type, v.name) for v in graph.inputs], nodes, [name(v) for v in graph.outputs]


def _rebuild(flat: _Flat) -> InnerGraph:
    inputs = [Variable(t, name) for t, name in flat[0]]
    made: list[Variable] = list(inputs)

    def find(entry: Any) -> Variable:
        return entry if isinstance(entry, Variable) else made[entry]

    nodes = []
    for op, arguments, outs, origin, hints in flat[1]:
        node = Apply(op, [find(a) for a in arguments], [t for t, _ in outs], origin, hints)
        for v, (_, name) in zip(node.outputs, outs):
            v.name = name
        nodes.append(node)
        made += node.outputs
    graph = InnerGraph.__new__(InnerGraph)
    graph._settle(inputs, nodes, [find(o) for o in flat[2]])
    return graph
