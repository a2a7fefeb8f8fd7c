"""The gradient of an op from its expression in simpler ops: used for second derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from symdnn.graph.backprop import backprop
from symdnn.graph.traverse import clone_graph
from symdnn.graph.variable import Variable

__all__ = ["vjp_of_expression", "vjp_of_expressions"]


def vjp_of_expression(
    build: Callable[..., Variable], inputs: Sequence[Variable], cotangent: Variable
) -> list[Variable | None]:
    """:func:`vjp_of_expressions` of a single one."""
    return vjp_of_expressions(lambda *given: [build(*given)], inputs, [cotangent])


def vjp_of_expressions(
    build: Callable[..., Sequence[Variable]],
    inputs: Sequence[Variable],
    cotangents: Sequence[Variable | None],
) -> list[Variable | None]:
    """Gradients of ``build(*inputs)`` with respect to each input, taken as independent.

    A cotangent is None where that expression is not used. The expressions are differentiated on
    fresh variables first: the inputs may depend on each other, and that dependence is the caller's
    to follow.
    """
    fresh = [Variable(v.type) for v in inputs]
    used = {e: c for e, c in zip(build(*fresh), cotangents) if c is not None}
    grads = backprop(used, fresh)
    stands_for = {**dict(zip(fresh, inputs, strict=True)), **{c: c for c in used.values()}}
    memo = clone_graph([g for g in grads if g is not None], stands_for)
    return [None if g is None else memo[g] for g in grads]
