"""The gradient of an op by writing the op out in simpler ones: for second derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from symdnn.graph.backprop import backprop
from symdnn.graph.traverse import clone_graph
from symdnn.graph.variable import Variable

__all__ = ["vjp_of_expression"]


def vjp_of_expression(
    build: Callable[..., Variable], inputs: Sequence[Variable], cotangent: Variable
) -> list[Variable | None]:
    """Gradients of ``build(*inputs)`` with respect to each input, taken as independent.

    The expression is differentiated on fresh variables first: the inputs may depend on each
    other, and that dependence is the caller's to follow.
    """
    fresh = [Variable(v.type) for v in inputs]
    grads = backprop({build(*fresh): cotangent}, fresh)
    stands_for = {**dict(zip(fresh, inputs, strict=True)), cotangent: cotangent}
    memo = clone_graph([g for g in grads if g is not None], stands_for)
    return [None if g is None else memo[g] for g in grads]
