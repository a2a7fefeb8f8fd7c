"""Ops that are defined by an expression in simpler ops: its types, shapes, reference and
gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from symdnn.config import config
from symdnn.graph.backprop import backprop, forward_sweep
from symdnn.graph.evaluate import evaluate
from symdnn.graph.inner import InnerGraph
from symdnn.graph.op import Grads, Host, Op, Shapes, Types, Vars
from symdnn.graph.origin import noting
from symdnn.graph.traverse import clone_graph
from symdnn.graph.type import TensorType, Type
from symdnn.graph.typing import Array
from symdnn.graph.variable import Variable
from symdnn.ops.core.inner_shapes import inner_shapes


class Composed(Op):
    """Base of ops that are defined by :meth:`expanded`, their expression in simpler ops.

    Types, shapes, reference and gradients are those of the expression. The op exists because one
    kernel computes the whole.
    """

    abstract: ClassVar[bool] = True

    if TYPE_CHECKING:  # a subclass has it, or another of its bases

        def expanded(self, *inputs: Variable) -> list[Variable] | None:
            """The outputs in simpler ops."""

    def infer(self, *inputs: Any) -> Any:
        return tuple(v.type for v in _inner_graph(self, inputs).outputs)

    def reference(self, *inputs: Array) -> Any:
        types = tuple(TensorType(a.dtype.name, a.shape) for a in inputs)
        inner = _inner_graph(self, types)
        return tuple(evaluate(inner.outputs, dict(zip(inner.inputs, inputs, strict=True))))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        inner = _inner_graph(self, tuple(types))
        found = inner_shapes(inner, range(len(inner.outputs)), shapes, host)
        known = [s for s in found if s is not None]
        return known if len(known) == len(found) else None

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        return vjp_of_expressions(lambda *v: self.expanded(*v) or [], inputs, cotangents)

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        return None


@lru_cache(maxsize=512)
def _inner_graph(op: Composed, types: tuple[Type, ...]) -> InnerGraph:
    """The expression of ``op`` for inputs of these types."""
    inputs = [Variable(t) for t in types]
    with config.change_flags(compute_test_value="off", warn_float64="ignore"):
        return InnerGraph(inputs, op.expanded(*inputs) or [])


def vjp_of_expression(
    build: Callable[..., Variable], inputs: Vars, cotangent: Variable
) -> list[Variable | None]:
    """:func:`vjp_of_expressions` of a single one."""
    return vjp_of_expressions(lambda *given: [build(*given)], inputs, [cotangent])


def vjp_of_expressions(
    build: Callable[..., Vars],
    inputs: Vars,
    cotangents: Sequence[Variable | None],
    known: Vars = (),
) -> list[Variable | None]:
    """Gradients of ``build(*inputs)`` with respect to each input, taken as independent.

    A cotangent is None where that expression is not used. ``known`` are values of the expressions
    that are there already; without them the gradients compute those that they need again. The
    expressions are differentiated on fresh variables first: the inputs may depend on each other,
    and that dependence is the caller's to follow.
    """
    fresh = [Variable(v.type) for v in inputs]
    made = build(*fresh)
    used = {e: c for e, c in zip(made, cotangents) if c is not None}
    grads = backprop(used, fresh)
    stands_for = {**dict(zip(fresh, inputs, strict=True)), **{c: c for c in used.values()}}
    stands_for |= dict(zip(made, known))
    memo = clone_graph([g for g in grads if g is not None], stands_for)
    return [None if g is None else memo[g] for g in grads]


def jvp_of_expressions(
    build: Callable[..., Vars],
    inputs: Vars,
    tangents: Sequence[Variable | None],
) -> list[Variable | None]:
    """Tangents of ``build(*inputs)``, given those of its inputs, which count as independent."""
    fresh = [Variable(v.type) for v in inputs]
    known = {v: t for v, t in zip(fresh, tangents, strict=True) if t is not None}
    found = forward_sweep(known, build(*fresh))
    stands_for = {**dict(zip(fresh, inputs, strict=True)), **{t: t for t in known.values()}}
    memo = clone_graph([t for t in found if t is not None], stands_for)
    return [None if t is None else memo[t] for t in found]


def written_out(op: Op, what: str) -> AbstractContextManager[None]:
    """A context: the report says that nodes made in it replace ``op``, whose derivative
    no op has.
    """
    return noting(f"{type(op).__name__} written out as {what}, for a derivative that no op has")
