"""Names of Theano's modules of linear algebra that symdnn has under another name."""

from __future__ import annotations

from typing import Any

from symdnn import tensor as T
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable

__all__ = [
    "diag", "extract_diag", "kron", "matrix_dot", "psd", "spectral_radius_bound", "trace",
]  # fmt: skip

diag, kron, matrix_dot, trace = T.diag, T.kron, T.matrix_dot, T.trace
alloc_diag = T.alloc_diag


def extract_diag(x: Any) -> Any:
    """The diagonal of a matrix."""
    return T.diagonal(x)


def psd(v: TensorLike) -> Variable:
    """``v``: Theano's hint that it is positive semi-definite, which is found without one."""
    return as_variable(v)


def spectral_radius_bound(X: TensorLike, log2_exponent: int) -> Variable:
    """An upper bound of the largest eigenvalue of a symmetric positive semi-definite matrix.

    It is ``trace(X ** n) ** (1 / n)`` with ``n = 2 ** log2_exponent``: closer, the larger ``n`` is.
    """
    power = as_variable(X)
    if power.type.ndim != 2:
        raise TypeError(f"spectral_radius_bound: wanted a matrix, got {power.type}")
    if not isinstance(log2_exponent, int):
        raise TypeError(f"spectral_radius_bound: log2_exponent={log2_exponent!r} is no integer")
    if log2_exponent <= 0:
        raise ValueError(f"spectral_radius_bound: log2_exponent={log2_exponent}, wanted 1 or more")
    for _ in range(log2_exponent):
        power = T.dot(power, power)
    return T.trace(power) ** 2.0**-log2_exponent
