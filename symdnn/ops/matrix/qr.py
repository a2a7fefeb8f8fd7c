"""The QR factorisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import OptionError
from symdnn.graph.dims import dim_min
from symdnn.graph.op import Grads, Vars
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.array.create import triu
from symdnn.ops.array.join import join
from symdnn.ops.core.shape import dims_of
from symdnn.ops.matrix.base import (
    MatrixOp,
    adjoint,
    each_matrix,
    first_columns,
    is_square,
    matrix_of,
    mm,
)
from symdnn.ops.matrix.solve import solve_triangular

_numpy_qr: Any = np.linalg.qr
_MODES = ("reduced", "complete", "r")


@dataclass(frozen=True)
class QR(MatrixOp):
    """``a = q r`` with orthonormal columns of ``q`` and an upper triangle ``r``; ``r`` alone in the
    mode ``"r"``. (LAPACK's ``geqrf`` and ``orgqr``; Theano's ``QRFull``.)

    Gradients: S. F. Walter and L. Lehmann, "Algorithmic differentiation of linear algebra functions
    with application in optimum experimental design", 2010; of wide matrices: D. A. O. Roberts and
    L. R. Roberts, "QR and LQ decomposition matrix backpropagation algorithms for square, wide, and
    deep matrices", 2020.
    """

    mode: str = "reduced"
    on_error: ClassVar[str] = "nan"  # type: ignore[misc]

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise OptionError(f"QR: mode is one of {', '.join(_MODES)}, got {self.mode!r}")

    def dims(self, *matrices: tuple[Any, ...]) -> Sequence[tuple[Any, ...]]:
        ((m, n),) = matrices
        k = None if m is None or n is None else dim_min(m, n)
        if self.mode == "complete":
            return [(m, m), (m, n)]
        return [(m, k), (k, n)] if self.mode == "reduced" else [(k, n)]

    def reference(self, a: Array) -> Any:
        made = [(d, a.dtype) for d in self.dims(a.shape[-2:])]
        return tuple(
            each_matrix(self, lambda x: _numpy_qr(x, self.mode), "", made, a, at_once=True)
        )

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        (a,) = inputs
        if self.mode == "r":
            q, r = QR("reduced")(a)
            return [_qr_vjp(a, q, r, None, cotangents[0])]
        (q, r), (dq, dr) = outputs, cotangents
        if self.mode == "complete" and not is_square(a):
            k = dim_min(*dims_of(a)[-2:])
            q, r = q[..., :k], r[..., :k, :]
            dq = None if dq is None else first_columns(self, dq, k)
            dr = None if dr is None else dr[..., :k, :]
        return [_qr_vjp(a, q, r, dq, dr)]


def _qr_vjp(
    a: Variable, q: Variable, r: Variable, dq: Variable | None, dr: Variable | None
) -> Variable:
    """Of ``a = [x, y] = q [u, v]``, ``u`` square; of a tall matrix ``y`` and ``v`` are empty."""
    m, n = a.type.shape[-2:]
    k = dims_of(q)[-1]
    whole = m is not None and n is not None and m >= n
    u, du, right = r, dr, None
    if not whole:
        u, y = r[..., :k], a[..., k:]
        if dr is not None:
            dv = dr[..., k:]
            from_v = mm(y, adjoint(dv))
            dq = from_v if dq is None else dq + from_v
            du, right = dr[..., :k], mm(q, dv)
        else:
            right = y.zeros_like()
    inner = None
    if du is not None:
        inner = mm(du, adjoint(u))
    if dq is not None:
        turn = mm(adjoint(q), dq)
        inner = -turn if inner is None else inner - turn
    assert inner is not None, "no cotangent"
    upper = triu(inner)
    symmetric = (upper + adjoint(triu(inner, 1)) + adjoint(upper) + triu(inner, 1)) / 2
    left = mm(q, symmetric)
    left = left if dq is None else left + dq
    # left inv(u)^H is the adjoint of the solution of u x = left^H.
    found = adjoint(solve_triangular(u, adjoint(left), lower=False, check=False))
    return found if right is None else join(-1, found, right)


def qr(a: TensorLike, mode: str = "reduced") -> Any:
    """``q, r`` of matrices (..., m, n) with ``a = q @ r``.

    Args:
        mode: ``"reduced"``: ``q`` (..., m, k) and ``r`` (..., k, n) with k = min(m, n);
            ``"complete"``: ``q`` (..., m, m) and ``r`` (..., m, n), whose gradient needs m <= n;
            ``"r"``: ``r`` of the reduced form alone.

    Gradients exist where the first k columns are independent. (``numpy.linalg.qr``.)
    """
    return QR(mode)(matrix_of("qr", a))
