"""Jacobians and Hessians: one gradient for a row, batched over all rows.

The gradient of one row is an expression of its cotangent, a unit vector. The matrix of all unit
vectors in its place gives all rows by the batching rules of the ops, without a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from symdnn.autodiff import grad
from symdnn.autodiff_flat import is_discrete
from symdnn.errors import NdimMismatch, TypeMismatch
from symdnn.graph.names.torch_words import advises
from symdnn.graph.operators import operator
from symdnn.graph.values.test_values_flag import entry_of
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array.create import eye
from symdnn.ops.control.batching import Operand, batch_graph
from symdnn.ops.core.lanes import spread
from symdnn.ops.core.shape import shape_i

__all__ = ["hessian", "hessian_vector_product", "jacobian"]


@advises(func="expression", inputs="wrt", outputs="expression")
def jacobian(
    expression: Variable | Callable[..., Any],
    wrt: Any = 0,
    consider_constant: Sequence[Variable] | None = None,
    disconnected_inputs: str = "raise",
    has_aux: bool = False,
    argnums: Any = None,
) -> Any:
    """Derivatives of a vector with respect to ``wrt``, a variable or a sequence of them.

    Of a function of arrays it is a function, with ``wrt`` the number or the name of an argument, or
    several of them: see :func:`symdnn.transforms.derivatives.jacobian_of_function`, which has
    ``has_aux`` too. ``argnums`` is another name of ``wrt``, JAX's.

    Each has the shape of ``expression`` followed by that of the variable. For a scalar expression
    it is the gradient. The result has the structure of ``wrt``. Raises
    :class:`~symdnn.errors.TypeMismatch` for an expression of more dimensions.
    """
    wrt = wrt if argnums is None else argnums
    if callable(expression) and not isinstance(expression, Variable):
        return operator("jacobian_of_function")(expression, wrt, has_aux)
    expression = as_variable(expression)
    if expression.type.ndim > 1:
        raise NdimMismatch(
            "jacobian", "a scalar or a vector", expression.type, "Flatten it: expression.flatten()"
        )
    targets = _targets("jacobian", wrt)
    if expression.type.ndim == 0:
        found = grad(expression, targets, consider_constant, disconnected_inputs)
    else:
        found = _rows(expression, targets, consider_constant, disconnected_inputs)
    return _like(wrt, found)


@advises(func="cost", inputs="wrt", outputs="cost")
def hessian(
    cost: Variable | Callable[..., Any],
    wrt: Any = 0,
    consider_constant: Sequence[Variable] | None = None,
    disconnected_inputs: str = "raise",
    argnums: Any = None,
) -> Any:
    """Second derivatives of a scalar with respect to vectors: a matrix for each of ``wrt``.

    Of a function of arrays it is a function, with ``wrt`` or ``argnums`` as for :func:`jacobian`;
    its arguments may then have any shapes.

    The result has the structure of ``wrt``. Raises :class:`~symdnn.errors.TypeMismatch` for
    anything but a scalar and vectors.
    """
    wrt = wrt if argnums is None else argnums
    if callable(cost) and not isinstance(cost, Variable):
        return operator("hessian_of_function")(cost, wrt)
    cost = as_variable(cost)
    if cost.type.ndim != 0:
        raise NdimMismatch("hessian", "a scalar cost", cost.type)
    targets = _targets("hessian", wrt)
    found = []
    for v in targets:
        if v.type.ndim != 1:
            raise NdimMismatch(
                "hessian", "vectors in wrt", v.type, "Flatten it and reshape it back"
            )
        slope = grad(cost, v, consider_constant, disconnected_inputs)
        # A constant slope is legal: its derivative is zero.
        found += _rows(slope, [v], consider_constant, "ignore")
    return _like(wrt, found)


def hessian_vector_product(
    cost: Variable,
    wrt: Any,
    p: Any,
    consider_constant: Sequence[Variable] | None = None,
    disconnected_inputs: str = "raise",
) -> Any:
    """The Hessian of a scalar times ``p``, without computing the Hessian.

    ``p`` has an entry of the same shape for each variable of ``wrt``, of any shapes. The result has
    the structure and shapes of ``wrt``. It is the gradient of the slope along ``p``, with the
    second derivatives between all variables of ``wrt``.
    """
    targets = [wrt] if isinstance(wrt, Variable) else list(wrt)
    directions = [p] if isinstance(wrt, Variable) else list(p)
    slopes = grad(cost, targets, consider_constant, disconnected_inputs)
    terms = [(g * d).sum() for g, d in zip(slopes, directions, strict=True)]
    along = sum(terms[1:], terms[0])
    return _like(wrt, grad(along, targets, [*(consider_constant or ()), *directions], "ignore"))


def _targets(what: str, wrt: Any) -> list[Any]:
    if not isinstance(wrt, Variable) and not hasattr(wrt, "__iter__"):
        raise TypeMismatch(what, "variables in wrt", repr(wrt))
    return [wrt] if isinstance(wrt, Variable) else list(wrt)


def _rows(
    vector: Variable, targets: Sequence[Any], constants: Any, disconnected: str
) -> list[Variable]:
    """The gradients of each entry of ``vector``, stacked."""
    size = vector.type.shape[0] or shape_i(vector, 0)
    if is_discrete(vector):  # its derivatives are zero
        flat = grad(vector.sum(), targets, constants, disconnected)
        return [spread(g, size) for g in flat]
    unit = vector.type("unit")
    entry_of(unit, vector)  # nothing reads its values, but for test values of the slopes
    slopes = grad(
        None, targets, constants, disconnected, add_names=False, known_grads={vector: unit}
    )
    units = eye(size, dtype=vector.type.dtype)
    rows = batch_graph(slopes, {unit: Operand(units, True)})
    return [o.value if o.stacked else spread(o.value, size) for o in rows]


def _like(wrt: object, found: Sequence[Variable]) -> Any:
    if isinstance(wrt, Variable):
        return found[0]
    return tuple(found) if isinstance(wrt, tuple) else list(found)
