"""Linear algebra by matrix products: ``matrix_dot``, ``kron``."""

from __future__ import annotations

from functools import reduce

from symdnn.errors import NdimMismatch
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.core.shape import dims_of
from symdnn.ops.linalg.dot import dot, factors

__all__ = ["kron", "matrix_dot"]


def matrix_dot(*args: Variable) -> Variable:
    """The product of several matrices, from left to right.

    Raises :class:`~symdnn.errors.TypeMismatch` without operands.
    """
    if not args:
        raise NdimMismatch("matrix_dot", "at least one matrix", "none")
    return reduce(dot, args)


def kron(a: TensorLike, b: TensorLike) -> Variable:
    """Kronecker product: each element of ``a`` times ``b``, laid out in blocks.

    For any ranks, as in NumPy: the operand with fewer dimensions gets leading ones of size 1.
    (Theano's ``slinalg.kron``.)
    """
    x, y = factors("kron", a, b)
    ndim = max(x.type.ndim, y.type.ndim)
    dims_x = (1,) * (ndim - x.type.ndim) + dims_of(x)
    dims_y = (1,) * (ndim - y.type.ndim) + dims_of(y)
    blocks = _interleaved(x, ndim, 0) * _interleaved(y, ndim, 1)
    return blocks.reshape([m * n for m, n in zip(dims_x, dims_y, strict=True)])


def _interleaved(v: Variable, ndim: int, odd: int) -> Variable:
    """``v`` with a new dimension of size 1 after (or before) each of its dimensions."""
    missing = ndim - v.type.ndim
    own: list[int | str] = [i - missing if i >= missing else "x" for i in range(ndim)]
    pattern: list[int | str] = []
    for d in own:
        pattern += ["x", d] if odd else [d, "x"]
    return v.dimshuffle(pattern)
