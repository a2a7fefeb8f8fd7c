"""A scope of names: builds the nodes of a graph, of its subgraphs, and of functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from symdnn.errors import ModelError, SymdnnError
from symdnn.graph.evaluate import evaluate
from symdnn.graph.origin import current_module, within
from symdnn.graph.variable import Constant, Shared, Variable
from symdnn.onnx.build.schemas import Schema, function_of, schema_of
from symdnn.onnx.build.sizes import of_sizes
from symdnn.onnx.build.table import builder_of
from symdnn.onnx.model.kinds import carrier, is_narrow, numpy_kind
from symdnn.onnx.model.node import Node
from symdnn.onnx.model.order import used_by
from symdnn.onnx.model.tensors import array_of, attribute_value
from symdnn.onnx.model.values import Sequence as Tensors
from symdnn.onnx.model.values import Unsettled, Value
from symdnn.rewriting.shapes import ShapeResolver

#: Calls of functions within functions, and graphs within graphs.
_DEEPEST = 64
#: What a builder raises for attributes and inputs that make no sense.
_FAULTS = (
    ValueError, TypeError, IndexError, KeyError, OverflowError, AttributeError, ZeroDivisionError,
    MemoryError, RecursionError,
)  # fmt: skip
#: Results with more elements are left to the compiler, which folds constants too.
_MOST_FOLDED = 1 << 16


#: The kinds of a file that the dtype which a user names stands for.
REPLACED = frozenset({"float32", "float16", "bfloat16"})


@dataclass
class World:
    """What all scopes of one file share: local functions, and the inputs that a call settles."""

    functions: Mapping[tuple[str, str, str], Any] = field(default_factory=dict)
    roots: dict[Variable, str] = field(default_factory=dict)
    folder: str | None = None
    #: What :data:`REPLACED` of the file become.
    dtype: str | None = None
    #: Sizes of values that were built, where a node asks.
    sizes: ShapeResolver = field(default_factory=ShapeResolver)

    def kind(self, kind: str) -> str:
        """The kind in the graph of a kind in the file."""
        return self.dtype if self.dtype is not None and kind in REPLACED else kind

    def adapted(self, value: Any) -> Any:
        """A value of the file in its kind in the graph."""
        if self.dtype is None or not isinstance(value, Value) or value.kind not in REPLACED:
            return value
        return Value.of(value.array.astype(numpy_kind(self.dtype)), self.dtype)  # type: ignore[union-attr]


class Scope:
    """Values by name, within a parent's; ``opsets`` are the versions of domains."""

    def __init__(
        self,
        world: World,
        opsets: Mapping[str, int],
        values: dict[str, Any],
        parent: Scope | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self.world, self.opsets, self.values, self.parent = world, opsets, values, parent
        inherited = None if parent is None else parent.attributes
        self.attributes: Mapping[str, Any] | None = inherited if attributes is None else attributes
        self.depth: int = 0 if parent is None else parent.depth + 1

    def find(self, name: str) -> Any:
        """The value of a name here or around; raises :class:`ModelError` if there is none."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.parent
        raise ModelError(f"the value {name!r} is used before a node makes it, or by no node made")

    # -- graphs -------------------------------------------------------------------------------

    def subgraph(self, graph: Any, inputs: Sequence[Any] = ()) -> list[Any]:
        """The outputs of a graph in an attribute, given its inputs."""
        if len(inputs) != len(graph.input):
            count = len(graph.input)
            raise ModelError(f"the graph {graph.name!r} has {count} inputs, not {len(inputs)}")
        values: dict[str, Any] = {v.name: i for v, i in zip(graph.input, inputs)}
        for tensor in graph.initializer:
            values[tensor.name] = self.world.adapted(array_of(tensor, self.world.folder))
        inner = Scope(self.world, self.opsets, values, self)
        return inner.outputs(graph.node, [o.name for o in graph.output])

    def outputs(self, nodes: Sequence[Any], names: Sequence[str]) -> list[Any]:
        """Builds the nodes that ``names`` need, in order."""
        if self.depth > _DEEPEST:
            raise ModelError("functions or graphs within one another without an end")
        for proto in needed(nodes, names):
            self._add(proto)
        return [self.find(n) for n in names]

    def _add(self, proto: Any) -> None:
        node = self._node(proto)
        with within(layer_path(current_module(), node.name)):
            results = self.run(node, proto)
        if len(results) < len([o for o in proto.output if o]):
            raise node.error(f"{len(proto.output)} outputs are wanted, and it has {len(results)}")
        for name, value in zip(proto.output, results):
            if name:
                self.values[name] = value

    def _node(self, proto: Any) -> Node:
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        attributes = {a.name: self._attribute(a) for a in proto.attribute}
        return Node(
            proto.op_type,
            domain,
            0,
            [self.find(n) if n else None for n in proto.input],
            {k: v for k, v in attributes.items() if v is not None},
            [bool(n) for n in proto.output],
            proto.name or next((o for o in proto.output if o), ""),
            self,
            self.world.roots,
        )

    def _attribute(self, proto: Any) -> Any:
        if proto.ref_attr_name:
            return (self.attributes or {}).get(proto.ref_attr_name)
        return self.world.adapted(attribute_value(proto, self.world.folder))

    # -- nodes --------------------------------------------------------------------------------

    def run(self, node: Node, proto: Any = None) -> list[Any]:
        """The outputs of a node; an error of its builder names it."""
        try:
            return self._run(node, proto)
        except (ModelError, Unsettled):
            raise
        except (SymdnnError, *_FAULTS) as error:
            raise node.error(f"{type(error).__name__}: {error}") from error

    def call(self, op: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> list[Any]:
        """The outputs of another op of the default domain, in the newest meaning of the file."""
        values = [Value(i) if isinstance(i, Variable) else i for i in inputs]
        node = Node(op, "", 0, values, attributes, [True] * outputs, "", self, self.world.roots)
        return self.run(node)

    def _run(self, node: Node, proto: Any) -> list[Any]:
        local = self.world.functions.get((node.domain, node.op, getattr(proto, "overload", "")))
        if local is not None:
            return self._function(local, node)
        schema = schema_of(node.op, node.domain, self.opset(node))
        node.version = schema.version if schema is not None else self.opset(node)
        builder = builder_of(node.domain, node.op, node.version)
        if builder is None:
            return self._by_definition(node, schema, proto)

        def build(again: Node) -> list[Any]:
            found = (builder_of(again.domain, again.op, again.version) or builder)(again)
            if found is NotImplemented:
                return self._by_definition(again, schema, proto)
            return self._results(again, schema, listed(found))

        found = of_sizes(node, build)
        return build(node) if found is None else found

    def _by_definition(self, node: Node, schema: Schema | None, proto: Any) -> list[Any]:
        """The node by the function of other ops that defines it."""
        body = None if schema is None else function_of(schema, node, self.opset(node), proto)
        if schema is None or body is None:
            raise node.error(_unknown(node, schema))
        return self._function(body, node, _plain(schema.defaults))

    def opset(self, node: Node) -> int:
        """The opset of the node's domain."""
        if node.domain in self.opsets:
            return self.opsets[node.domain]
        if node.domain == "":
            return max(self.opsets.values(), default=1)
        return 1

    def _results(self, node: Node, schema: Schema | None, results: list[Any]) -> list[Any]:
        folds = all(
            v is None or (isinstance(v, Value) and v.array is not None) for v in node.inputs
        )
        found = []
        for i, result in enumerate(results):
            value = Value(result) if isinstance(result, Variable) else result
            if isinstance(value, Value) and schema is not None:
                value = _conforming(node, schema, i, value)
            if folds and isinstance(value, Value) and value.data is None:
                value = folded(value)
            found.append(value)
        return found

    def _function(
        self, body: Any, node: Node, defaults: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """A call of a function: its nodes on these inputs, in a scope of their own."""
        inputs = list(node.inputs) + [None] * (len(body.input) - len(node.inputs))
        values = dict(zip(body.input, inputs))
        own = {a.name: attribute_value(a, self.world.folder) for a in body.attribute_proto}
        attributes = {**(defaults or {}), **own, **node.attributes}
        opsets = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in body.opset_import}
        inner = Scope(self.world, {**self.opsets, **opsets}, values, None, attributes)
        inner.depth = self.depth + 1
        wanted = [o for o, w in zip(body.output, node.wanted) if w]
        found = dict(zip(wanted, inner.outputs(body.node, wanted)))
        return [found.get(o) for o in body.output][: len(node.wanted)]


def layer_path(around: str, name: str) -> str:
    """The path of a node in reports, within that of the node around it: ``layer1.0.conv1.Conv``."""
    own = ".".join(filter(None, name.split("/")))
    return f"{around}.{own}" if around and own else around or own


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes with text as strings."""
    return {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}


#: What ONNX Runtime makes of a model for one processor, when it saves it with all optimisations.
_OF_ONE_PROCESSOR = ("com.microsoft.nchwc", "com.ms.internal.nhwc")


def _unknown(node: Node, schema: Schema | None) -> str:
    if node.domain in _OF_ONE_PROCESSOR:
        return (
            "it is in a layout that ONNX Runtime chose for one processor; use the model from "
            "before that, or save it with graph_optimization_level=ORT_ENABLE_EXTENDED"
        )
    if schema is None:
        return f"symdnn knows no op of this name in the domain {node.domain or 'ai.onnx'!r}"
    return "symdnn does not run this op; docs/onnx.md lists those that it refuses, and why"


def listed(results: Any) -> list[Any]:
    """What a builder returned, as a list of outputs."""
    if isinstance(results, Tensors):
        return [results]
    return list(results) if isinstance(results, list | tuple) else [results]


def _conforming(node: Node, schema: Schema, i: int, value: Value) -> Value:
    """``value`` in the kind that the op's declaration gives to output ``i``."""
    kind = schema.output_kind(i, node.inputs)
    if kind is None or kind == value.kind:
        return value
    if is_narrow(kind) and value.kind == carrier(kind):
        return Value(value.variable, kind) if value.data is None else Value(None, kind, value.data)
    if value.array is not None:
        return Value.of(value.array.astype(carrier(kind)), kind)
    return Value(value.variable.astype(carrier(kind)), kind) if value.data is None else value


def folded(value: Value) -> Value:
    """``value`` as a constant, if it depends on constants alone and is small."""
    v = value.variable
    static = v.type.shape
    if None not in static and int(np.prod([d or 1 for d in static])) > _MOST_FOLDED:
        return value
    if isinstance(v, Constant):
        return Value(v, value.kind, np.asarray(v.data))
    if _draws(v):
        return value
    return Value(None, value.kind, np.asarray(evaluate([v], {})[0]))


def _draws(v: Variable) -> bool:
    waiting, seen = [v], set()
    while waiting:
        u = waiting.pop()
        if u in seen:
            continue
        seen.add(u)
        if u.owner is None:
            if isinstance(u, Shared) or not isinstance(u, Constant):
                return True
            continue
        waiting += u.owner.inputs
    return False


def needed(nodes: Sequence[Any], names: Iterable[str]) -> list[Any]:
    """The nodes that make ``names`` and what they need, in the order of the file."""
    wanted = set(names)
    kept = []
    for proto in reversed(nodes):
        if any(o in wanted for o in proto.output if o):
            kept.append(proto)
            wanted.update(used_by(proto))
    return kept[::-1]
