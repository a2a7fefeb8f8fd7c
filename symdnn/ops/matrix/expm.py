"""The exponential of matrices, and integer powers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from symdnn.errors import OptionError
from symdnn.graph.op import Grads, Vars
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.array.create import eye
from symdnn.ops.array.join import join
from symdnn.ops.core.shape import shape_i
from symdnn.ops.matrix.base import (
    MatrixOp,
    adjoint,
    each_matrix,
    matrices,
    matrix_of,
    mm,
    square_dim,
)
from symdnn.ops.matrix.expm_of_stacks import expm_of_stack
from symdnn.ops.matrix.solve import inv

__all__ = ["Expm", "expm", "matrix_power"]

#: Of larger matrices in a stack each is computed by itself.
_MOST_ROWS_OF_STACKS = 32


@dataclass(frozen=True)
class Expm(MatrixOp):
    """The exponential of each matrix, by Pade approximation with scaling and squaring.

    (:mod:`symdnn.ops.matrix.expm_of_stacks`; ``scipy.linalg.expm``; Theano's ``Expm``.)

    Gradient: the Frechet derivative is a block of the exponential of ``[[a, e], [0, a]]``
    (I. Najfeld and T. F. Havel, "Derivatives of the matrix exponential and their computation",
    1995).
    """

    on_error: ClassVar[str] = "nan"  # type: ignore[misc]

    def reference(self, a: Array) -> Array:
        if a.shape[-1] <= _MOST_ROWS_OF_STACKS:
            return expm_of_stack(a)
        return each_matrix(self, expm_of_stack, "not finite", [(a.shape[-2:], a.dtype)], a)[0]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [_frechet(adjoint(inputs[0]), cotangents[0])]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        (t,) = tangents
        return [None if t is None else _frechet(inputs[0], t)]


def _frechet(a: Variable, e: Variable) -> Variable:
    """The derivative of the exponential at ``a`` along ``e``."""
    n, rows = shape_i(a, -1), a.type.ndim - 2
    whole = join(rows, join(rows + 1, a, e), join(rows + 1, a.zeros_like(), a))
    return Expm()(whole)[..., :n, n:]


def expm(a: TensorLike) -> Variable:
    """The exponential of square matrices (..., n, n). (``scipy.linalg.expm``.)"""
    return Expm()(matrix_of("expm", a))


def matrix_power(a: TensorLike, n: int) -> Variable:
    """Square matrices (..., m, m) to the integer power ``n``, by repeated squaring.

    A negative power is one of the inverse. (``numpy.linalg.matrix_power``.)

    >>> from symdnn.graph.evaluate import evaluate
    >>> evaluate([matrix_power(np.array([[1.0, 1.0], [1.0, 0.0]]), 10)], {})[0].tolist()
    [[89.0, 55.0], [55.0, 34.0]]
    """
    if not isinstance(n, int | np.integer):
        raise OptionError(f"matrix_power: wanted an int as the power, got {n!r}")
    (m,) = matrices("matrix_power", a, factored=n < 0)
    square_dim(Expm(), m.type.shape[-2:])
    power, count = (inv(m), -int(n)) if n < 0 else (m, int(n))
    found: Variable | None = None
    while count:
        if count % 2:
            found = power if found is None else mm(found, power)
        count //= 2
        power = mm(power, power) if count else power
    return m.zeros_like() + eye(shape_i(m, -1), dtype=m.type.dtype) if found is None else found
