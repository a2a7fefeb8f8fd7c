"""``checkpoint``: a part of an expression whose values the backward pass computes again.

T. Chen, B. Xu, C. Zhang and C. Guestrin, "Training deep nets with sublinear memory cost", 2016.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from symdnn.errors import TypeMismatch
from symdnn.graph.backprop import nodes_between
from symdnn.graph.inner import InnerGraph
from symdnn.graph.op import Array, Axes, Batched, Grads, Host, MultiOp, Shapes, Types, Vars
from symdnn.graph.traverse import clone_graph
from symdnn.graph.type import TensorType, Type
from symdnn.graph.values.structured import Structured
from symdnn.graph.variable import Constant, Variable
from symdnn.ops.core.composed import vjp_of_expressions
from symdnn.ops.core.gradient_control import Identity

T = TypeVar("T")


class After(Identity):
    """The first input as a view, computed no earlier than the others.

    Values computed from it differ, as nodes, from those computed from the input itself. So they are
    not merged with the nodes of the forward pass.
    """

    folds: ClassVar[bool] = False
    gradient_only: ClassVar[bool] = False


@dataclass(frozen=True)
class Checkpoint(MultiOp):
    """The first inputs, as views: values of ``inner`` of the others, which its gradient makes anew.

    The last inputs are those of ``inner``. The first ``again`` of them are read again after the
    cotangents were computed. A rewrite removes the op after gradients were taken. With ``apart``,
    gradients inside a loop are computed in the loop, and their products are not hoisted out of it.
    With ``stored`` the gradient reads the values as they are, and makes only what is between them.
    """

    inner: InnerGraph
    again: int
    apart: bool = False
    stored: bool = False

    @property
    def count(self) -> int:
        """The number of outputs."""
        return len(self.inner.outputs)

    def with_inner(self, inner: InnerGraph) -> Checkpoint:
        """The same op with another graph of the same meaning."""
        return replace(self, inner=inner)

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        wanted = self.count + len(self.inner.inputs)
        if len(inputs) != wanted:
            raise TypeMismatch(self, f"{wanted} inputs", f"{len(inputs)} of them")
        return inputs[: self.count]

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        return inputs[: self.count]

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [tuple(s) for s in shapes[: self.count]]

    @property
    def views(self) -> Mapping[int, int]:
        return {i: i for i in range(self.count)}

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        there = [c for c in cotangents if c is not None]
        given = [
            After()(v, *there) if i < self.again and _is_array(v) and not self.stored else v
            for i, v in enumerate(inputs[self.count :])
        ]
        known = outputs if self.stored else ()
        found = vjp_of_expressions(lambda *v: self.inner.apply(v), given, cotangents, known)
        if self.apart:
            found = [None if g is None else After()(g) for g in found]
        return [*[None] * self.count, *found]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        return list(tangents[: self.count])

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return list(inputs[: self.count]), list(axes[: self.count])

    def __str__(self) -> str:
        return f"Checkpoint{{{self.inner}}}"


def checkpoint(f: Callable[..., T]) -> Callable[..., T]:
    """``f``, with intermediate values that are recomputed for gradients and not stored.

    ``f`` takes and returns variables, or trees of them (lists, tuples, dicts), besides other
    values; it may be a layer. Values, gradients of every order and tangents are the same. A
    backward pass keeps the arguments and recomputes the rest. Random numbers are drawn again from
    the same state, so masks of dropout are the same. Updates of statistics and of random states
    happen once. Checkpoints may be nested. Variables that ``f`` reads from outside are kept, and so
    are values that depend only on them. Outside there is no gradient with respect to a variable
    inside of ``f``.

    As ``jax.checkpoint`` and ``torch.utils.checkpoint``.

    >>> import numpy as np
    >>> import symdnn
    >>> import symdnn.tensor as T
    >>> x = T.vector("x", dtype="float64")
    >>> cost = symdnn.checkpoint(lambda v: T.tanh(T.exp(v) * v))(x).sum()
    >>> f = symdnn.function([x], symdnn.grad(cost, x))
    >>> np.allclose(f([0.0, 1.0]), [1.0, (1 - np.tanh(np.e) ** 2) * 2 * np.e])
    True
    """

    return _checkpointed(f, apart=False)


def checkpoint_of_a_step(f: Callable[..., T]) -> Callable[..., T]:
    """:func:`checkpoint` of a part of a loop, whose memory must not become that of all parts."""
    return _checkpointed(f, apart=True)


def stored_in_a_step(given: Vars, results: Vars) -> list[Variable]:
    """The results of a part of a loop as they are, from which its gradient goes on.

    Products of the gradient are not hoisted out of the loop, as those of
    :func:`checkpoint_of_a_step`. ``given`` are the variables that the part reads.
    """
    marked = _marked(given, results, apart=True, stored=True)
    return [marked.get(v, v) for v in results]


def _checkpointed(f: Callable[..., T], apart: bool) -> Callable[..., T]:
    @functools.wraps(f, updated=())
    def checkpointed(*args: Any, **words: Any) -> T:
        given: list[Variable] = []
        _mapped((args, words), _collecting(given))
        result = f(*args, **words)
        made: list[Variable] = []
        _mapped(result, _collecting(made))
        marked = _marked(list(dict.fromkeys(given)), list(dict.fromkeys(made)), apart)
        found: T = _mapped(result, lambda v: marked.get(v, v))
        return found

    return checkpointed


def _collecting(into: list[Variable]) -> Callable[[Variable], Variable]:
    def collect(v: Variable) -> Variable:
        into.append(v)
        return v

    return collect


def _mapped(tree: Any, change: Callable[[Variable], Variable]) -> Any:
    """The tree with its variables replaced; other leaves stay."""
    if isinstance(tree, Variable):
        return change(tree)
    if isinstance(tree, Structured):
        for v in tree.parts:  # arguments; a result is returned unchanged
            change(v)
        return tree
    if isinstance(tree, Mapping):
        items = [(k, _mapped(v, change)) for k, v in tree.items()]
        return type(tree)(items)  # type: ignore[call-arg]
    if isinstance(tree, list | tuple):
        entries = [_mapped(v, change) for v in tree]
        return type(tree)(*entries) if hasattr(tree, "_fields") else type(tree)(entries)
    return tree


def _is_array(v: Variable) -> bool:
    """Whether it may be large: numbers for shapes and bounds stay on the host, and are kept."""
    return isinstance(v.type, TensorType) and not v.type.is_integer_scalar


def _marked(given: Vars, made: Vars, apart: bool, stored: bool = False) -> dict[Variable, Variable]:
    """The results behind a :class:`Checkpoint`, for those that depend on the inputs."""
    arguments = set(given)
    nodes = nodes_between(made, given, arguments)
    inside = {v for n in nodes for v in n.outputs} - arguments
    results = [v for v in made if v in inside]
    if not results:
        return {}
    read = {v: None for n in nodes for v in n.inputs if v not in inside}
    first = [v for v in given if v in read]
    others = [v for v in read if v not in arguments and not isinstance(v, Constant)]
    fresh = {v: v.type(v.name) for v in (*first, *others)}
    memo = clone_graph(results, fresh)
    inner = InnerGraph([fresh[v] for v in (*first, *others)], [memo[v] for v in results])
    for node in inner.nodes:
        for v in node.outputs:
            v._tag = None  # updates of statistics are those of the forward pass
    op = Checkpoint(inner, len(first), apart, stored)
    return dict(zip(results, op.make_node(*results, *first, *others).outputs))
