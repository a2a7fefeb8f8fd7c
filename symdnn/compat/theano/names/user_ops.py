"""``Op`` and ``Apply`` of Theano: ops with ``make_node`` and ``perform``, under symdnn's contract.

A subclass of :class:`Op` is an op of symdnn: its instances are the ops of nodes, its gradients are
those of ``grad`` or ``L_op``, and its ``perform`` is the reference that runs it.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np

from symdnn.compat.theano.names.types import DisconnectedType, NullType
from symdnn.config import config
from symdnn.errors import NonDifferentiable
from symdnn.graph import variable as graph
from symdnn.graph.backprop import Undefined
from symdnn.graph.evaluate import evaluate
from symdnn.graph.op import Axes, Batched, Grads, Host, MultiOp, Shapes, Types, Vars
from symdnn.graph.op import Op as SymdnnOp
from symdnn.graph.operators import operator
from symdnn.graph.origin import Hints
from symdnn.graph.traverse import leaves
from symdnn.graph.type import TensorType, Type
from symdnn.graph.typing import TensorLike
from symdnn.graph.values.test_values_flag import attach_test_values
from symdnn.graph.variable import Constant, Shared, Variable, as_variable
from symdnn.ops.core.gradient_control import Identity

__all__ = ["Apply", "FromFunctionOp", "MethodNotDefined", "Op", "PureOp", "ViewOp", "as_op"]


class MethodNotDefined(Exception):
    """An op lacks a method, such as ``grad`` (Theano's name)."""


class _AnyApply(type):
    def __instancecheck__(cls, node: object) -> bool:
        return isinstance(node, graph.Apply)


class Apply(graph.Apply[Any], metaclass=_AnyApply):
    """``theano.Apply(op, inputs, outputs)``: a node that owns the variables ``outputs``.

    Every node of symdnn is an instance.
    """

    def __init__(self, op: Any, inputs: Sequence[Any], outputs: Vars) -> None:
        given = [as_variable(i) for i in inputs]
        for o in outputs:
            if not isinstance(o, Variable):
                raise TypeError(f"Apply of {op}: wanted outputs such as x.type(), got {o!r}")
        super().__init__(op, given, [o.type for o in outputs])
        self.outputs = tuple(outputs)
        for index, output in enumerate(outputs):
            if output.owner is not None or isinstance(output, Shared | Constant):
                raise ValueError(f"Apply of {op}: the output {output} belongs to another node")
            output.owner, output.index = cast("graph.Apply[Any]", self), index

    def __reduce__(self) -> tuple[object, ...]:
        return graph.Apply.__reduce__(self)


#: op (by identity) -> {types of inputs, or their (dtype, ndim): the node last made of such}.
_NODES: dict[int, dict[Any, Any]] = {}


def _nodes_of(op: object) -> dict[Any, Any]:
    found = _NODES.get(id(op))
    if found is None:
        found = _NODES[id(op)] = {}
        weakref.finalize(op, _NODES.pop, id(op), None)
    return found


def _signature(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple((str(v.dtype), v.ndim) if hasattr(v, "ndim") else type(v) for v in values)


class _EveryOp(type):
    """The class of ``PureOp`` and its subclasses: as in Theano, each op is an ``Op``."""

    def __instancecheck__(cls, op: object) -> bool:
        if vars(cls).get("every_op"):
            return isinstance(op, SymdnnOp)
        return type.__instancecheck__(cls, op)


class PureOp(MultiOp, metaclass=_EveryOp):
    """The base of Theano's ops.

    A subclass has ``make_node`` (or ``itypes`` and ``otypes``) and ``perform(node, inputs,
    output_storage)``; it may have ``grad`` or ``L_op``, ``R_op``, ``infer_shape``,
    ``connection_pattern``, ``view_map``, ``destroy_map`` and ``__props__``. C code is not used.
    Inputs named by ``destroy_map`` are copied before ``perform`` is called, results are cast to the
    dtypes of the node's outputs.
    """

    abstract: ClassVar[bool] = True
    every_op: ClassVar[bool] = True
    default_output: Any = None
    view_map: ClassVar[Mapping[int, Sequence[int]]] = {}
    destroy_map: ClassVar[Mapping[int, Sequence[int]]] = {}

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.abstract = False
        if "__props__" in cls.__dict__:
            for name in ("__eq__", "__hash__", "__str__"):
                if name not in cls.__dict__:
                    setattr(cls, name, getattr(_Props, name))

    @property
    def host_callback(self) -> bool:
        return True

    def do_constant_folding(self, node: object) -> bool:
        """Whether the op may be computed while compiling where all inputs are constants."""
        return True

    @property
    def folds(self) -> bool:  # type: ignore[override]
        try:
            return bool(self.do_constant_folding(None))
        except Exception:  # it asks the node: do not fold
            return False

    # -- Theano's contract --------------------------------------------------------------------

    def make_node(self, *inputs: object, hints: Hints | None = None, **words: object) -> Any:
        """The node of this op on ``inputs``: by ``itypes`` and ``otypes`` unless overridden."""
        itypes, otypes = getattr(self, "itypes", None), getattr(self, "otypes", None)
        if itypes is None or otypes is None:
            raise NotImplementedError(f"{type(self).__name__} has no make_node, and no itypes")
        if len(inputs) != len(itypes):
            raise ValueError(f"{self}: wanted {len(itypes)} inputs, got {len(inputs)}")
        given = [as_variable(i) for i in inputs]
        for i, (v, t) in enumerate(zip(given, itypes)):
            if not t.accepts(v.type):
                raise TypeError(f"{self}: input {i} has type {v.type}, wanted {t}")
        return Apply(self, given, [t() for t in otypes])

    def perform(
        self, node: object, inputs: object, output_storage: object, params: object = None
    ) -> None:
        """Compute ``inputs`` (arrays) and put the results into ``output_storage[i][0]``."""
        name = type(self).__name__
        written = any(hasattr(self, method) for method in ("c_code", "c_code_helper"))
        raise MethodNotDefined(
            f"{name}.perform: {name} has C code alone, which nothing compiles here. Write what it "
            "does as perform()"
            if written
            else f"{name}.perform"
        )

    def grad(self, inputs: object, output_grads: object) -> Any:
        """The gradients with respect to ``inputs``, of which there is one for each."""
        raise NonDifferentiable(f"{self} has no grad")

    def L_op(self, inputs: object, outputs: object, output_grads: object) -> Any:
        """As :meth:`grad`, with the node's outputs."""
        return self.grad(inputs, output_grads)

    def __call__(self, *inputs: Any, **words: Any) -> Any:
        """Apply to variables; the output, ``default_output``, or a list of several."""
        return_list, name = words.pop("return_list", False), words.pop("name", None)
        words.pop("hints", None)
        node = self.make_node(*inputs, **words)
        if not isinstance(node, graph.Apply):
            raise TypeError(f"{self}.make_node: wanted a node, gof.Apply(...), got {node!r}")
        if config.compute_test_value != "off":
            attach_test_values(node)
        if name is not None:
            node.outputs[0].name = name
        if self.default_output is not None:
            found = node.outputs[self.default_output]
            return [found] if return_list else found
        return node.outputs[0] if len(node.outputs) == 1 and not return_list else [*node.outputs]

    def __getstate__(self) -> Any:
        return self.__dict__.copy()

    # -- symdnn's contract --------------------------------------------------------------------

    def typed(self, inputs: Vars) -> tuple[Type, ...]:
        node = self.make_node(*inputs)
        types = [v.type for v in inputs]
        _nodes_of(self)[_signature(types)] = _nodes_of(self)[tuple(types)] = node
        return tuple(o.type for o in node.outputs)

    def infer(self, *inputs: Any, **params: Any) -> Any:
        return self.typed([_of_type(t) for t in inputs])

    def compute(self, *inputs: Any) -> tuple[Any, ...]:
        node = self._node(inputs)
        copied = {i for places in self.destroy_map.values() for i in places}
        values = [np.array(v) if i in copied else v for i, v in enumerate(inputs)]
        storage: list[list[Any]] = [[None] for _ in node.outputs]
        try:
            self.perform(node, values, storage)
        except TypeError as error:
            if "params" not in str(error):
                raise
            self.perform(node, values, storage, None)
        found = []
        for output, (value,) in zip(node.outputs, storage):
            found.append(_result(self, output.type, value, inputs))
        return tuple(found)

    def _node(self, values: Sequence[Any]) -> Any:
        """The node that ``perform`` is called with: the last one made of inputs of these types."""
        found = _nodes_of(self).get(_signature(values))
        if found is None:
            variables = [_of_type(_type_of(v)) for v in values]
            self.typed(variables)
            found = _nodes_of(self)[_signature(values)]
        return found

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        infer = getattr(self, "infer_shape", None)
        if infer is None:
            return None
        try:
            node = _nodes_of(self).get(tuple(types)) or self.make_node(*map(_of_type, types))
            found = infer(node, [tuple(s) for s in shapes])
            return [tuple(map(_dimension, s)) for s in found]
        except Exception:  # as in Theano, a failure means that shapes are not known before it runs
            return None

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        missing: Sequence[Variable | None] = cotangents
        given = [self._cotangent(o, c) for o, c in zip(outputs, missing)]
        used = [c is not None for c in missing]
        reached = self._reached(outputs, used)
        found = self.L_op(list(inputs), list(outputs), given)
        if not isinstance(found, list | tuple) or len(found) != len(inputs):
            return cast(Grads, found)  # the caller says what is wrong
        return [
            _gradient(self, v, g) if connected else None
            for v, g, connected in zip(inputs, found, reached)
        ]

    def _reached(self, outputs: Vars, used: Sequence[bool]) -> list[bool]:
        """For each input, whether one of the ``used`` outputs depends on it, by the op's
        ``connection_pattern``, which is ``pattern[input][output]``."""
        node = outputs[0].owner
        assert node is not None
        pattern = getattr(self, "connection_pattern", None)
        if pattern is None:
            return [True] * len(node.inputs)
        return [any(c and u for c, u in zip(row, used)) for row in pattern(node)]

    def _cotangent(self, output: Variable, given: Variable | None) -> Variable:
        """What ``grad`` gets for an output that the cost does not use: zeros, or where the op has a
        ``connection_pattern`` a variable of :class:`DisconnectedType`."""
        if given is not None:
            return given
        if hasattr(self, "connection_pattern"):
            return DisconnectedType()()
        return operator("zeros_like")(output)

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        forward = getattr(self, "R_op", None)
        if forward is None:
            return None
        found = forward(list(inputs), list(tangents))
        return list(found) if isinstance(found, list | tuple) else [found]

    def __str__(self) -> str:
        return type(self).__name__


class Op(PureOp):
    """``theano.Op``; see :class:`PureOp`."""

    abstract: ClassVar[bool] = True
    every_op: ClassVar[bool] = True


class ViewOp(PureOp, Identity):
    """``theano.compile.ViewOp``: its input, as it is. Programs override its ``grad``.

    As long as a subclass does not override ``perform``, it costs nothing when the function runs.
    """

    abstract: ClassVar[bool] = True
    view_map: ClassVar[Mapping[int, Sequence[int]]] = {0: [0]}

    @property
    def _computes(self) -> bool:
        return type(self).perform is not ViewOp.perform

    @property
    def host_callback(self) -> bool:
        return self._computes

    @property
    def unmergeable(self) -> bool:
        return self._computes

    @property
    def views(self) -> Mapping[int, int]:
        return {} if self._computes else {0: 0}

    def make_node(self, *inputs: object, hints: Hints | None = None, **words: object) -> Any:
        given = [as_variable(i) for i in inputs]
        return Apply(self, given, [given[0].type()])

    def perform(
        self, node: object, inputs: Any, output_storage: Any, params: object = None
    ) -> None:
        output_storage[0][0] = inputs[0]

    def compute(self, *inputs: Any) -> tuple[Any, ...]:
        return super().compute(*inputs) if self._computes else (inputs[0],)

    def infer_shape(self, node: object, shapes: Any) -> Any:
        """The input's shape."""
        return [shapes[0]]

    def grad(self, inputs: Any, output_grads: Any) -> Any:
        return [*output_grads, *(DisconnectedType()() for _ in inputs[1:])]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        return PureOp.jvp(self, inputs, outputs, tangents)

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return None if self._computes else Identity.batch(self, inputs, axes)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(type(self))


class _Props:
    """What ``__props__`` gives a class: equality, hash and text by the values of these names."""

    def _props(self) -> tuple[Any, ...]:
        return tuple(getattr(self, n) for n in type(self).__props__)  # type: ignore[attr-defined]

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and _Props._props(self) == _Props._props(other)

    def __hash__(self) -> int:
        return hash((type(self), _Props._props(self)))

    def __str__(self) -> str:
        names = type(self).__props__  # type: ignore[attr-defined]
        given = ", ".join(f"{n}={getattr(self, n)!r}" for n in names)
        return f"{type(self).__name__}{{{given}}}" if given else type(self).__name__


def _of_type(type_: Any) -> Variable:
    return Variable(type_)


def _type_of(value: Any) -> TensorType:
    return TensorType(str(value.dtype), (None,) * value.ndim)


def _result(op: SymdnnOp, type_: object, value: TensorLike, inputs: Sequence[Any]) -> Any:
    """What ``perform`` stored, as a new array of the output's dtype."""
    if value is None:
        raise ValueError(f"{op}.perform left an output empty")
    if not isinstance(type_, TensorType):
        return value
    array = np.asarray(value)
    if array.ndim != type_.ndim:
        raise ValueError(
            f"{op}.perform gave {array.ndim} dimension(s), its make_node promised {type_}"
        )
    if array.dtype != type_.numpy:
        array = array.astype(type_.numpy)
    if any(isinstance(i, np.ndarray) and np.may_share_memory(array, i) for i in inputs):
        array = array.copy()
    return array


def _dimension(d: Any) -> Any:
    """A size that ``infer_shape`` gave: an int where its value is known."""
    if not isinstance(d, Variable):
        return int(d)
    if leaves([d]) and not all(isinstance(v, Constant) for v in leaves([d])):
        return d
    return int(evaluate([d], {})[0])


def _gradient(op: SymdnnOp, v: Variable, g: Any) -> Variable | None:
    kind = getattr(g, "type", None)
    if g is None or isinstance(kind, DisconnectedType):
        return None
    if isinstance(kind, NullType):
        return Undefined(g.type, f"{op}: {g.type.why_null}")
    return cast(Variable, g)


class FromFunctionOp(Op):
    """The op that :func:`as_op` makes of a function of arrays."""

    __props__ = ("fn", "itypes", "otypes")

    def __init__(
        self, fn: Callable[..., Any], itypes: Any, otypes: Any, infer_shape: Any = None
    ) -> None:
        self.fn, self.itypes, self.otypes = fn, tuple(itypes), tuple(otypes)
        if infer_shape is not None:
            self.infer_shape = infer_shape

    def __str__(self) -> str:
        return f"FromFunctionOp{{{self.fn.__name__}}}"

    def perform(
        self, node: object, inputs: Any, output_storage: Any, params: object = None
    ) -> None:
        """Call the function."""
        found = self.fn(*inputs)
        results = found if isinstance(found, list | tuple) else [found]
        if len(results) != len(output_storage):
            raise ValueError(f"{self}: {len(results)} results, wanted {len(output_storage)}")
        for cell, value in zip(output_storage, results):
            cell[0] = value


def as_op(
    itypes: object, otypes: object, infer_shape: object = None
) -> Callable[..., FromFunctionOp]:
    """A decorator that makes an op of a function of arrays (Theano's ``as_op``).

    ``itypes`` and ``otypes`` are a type or a list of types; ``infer_shape(node, input_shapes)``
    gives the outputs' shapes. The op has no gradient.
    """
    inputs = list(itypes) if isinstance(itypes, list | tuple) else [itypes]
    outputs = list(otypes) if isinstance(otypes, list | tuple) else [otypes]
    for t in [*inputs, *outputs]:
        if not isinstance(t, Type):
            raise TypeError(f"as_op: wanted types such as T.dvector, got {t!r}")
    if infer_shape is not None and not inspect.isroutine(infer_shape):
        raise TypeError("as_op: infer_shape must be a function")

    def make(fn: Callable[..., Any]) -> FromFunctionOp:
        return FromFunctionOp(fn, inputs, outputs, infer_shape)

    return make
