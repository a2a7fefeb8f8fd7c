"""NumPy's and SciPy's functions of linear algebra, by path."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg as sl


def _lower(a: Any, b: Any, lower: bool = True) -> Any:
    return np.linalg.solve(np.tril(a) if lower else np.triu(a), b)


def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    return np.linalg.norm(x, {"inf": np.inf, "-inf": -np.inf}.get(ord, ord), axis, keepdims)


def _symmetric(f: Any) -> Any:
    """Of the lower triangle alone, whatever rounding made of the other one."""
    return lambda a: f(np.tril(a) + np.swapaxes(np.tril(a, -1), -1, -2))


def _expm(a: Any) -> Any:
    """By Taylor's series and squares in long doubles: SciPy's errs by up to 1e-12 of the norm."""
    wide = np.asarray(a).astype("clongdouble" if np.iscomplexobj(a) else "longdouble")
    norm = float(np.abs(wide).sum(-1).max(initial=0.0))
    if not norm < 1e4:
        return sl.expm(a)
    halvings = max(0, int(np.ceil(np.log2(max(norm, 1.0))))) + 1
    term = total = np.broadcast_to(np.eye(a.shape[-1], dtype=wide.dtype), wide.shape)
    for k in range(1, 26):
        term = term @ (wide / 2**halvings) / k
        total = total + term
    for _ in range(halvings):
        total = total @ total
    return total.astype(np.asarray(a).dtype)


MATRICES: dict[str, Any] = {
    "T.linalg.inv": np.linalg.inv,
    "T.nlinalg.matrix_inverse": np.linalg.inv,
    "T.linalg.det": np.linalg.det,
    "T.linalg.slogdet": lambda a: list(np.linalg.slogdet(a)),
    "T.linalg.cholesky": _symmetric(np.linalg.cholesky),
    "T.linalg.eigvalsh": _symmetric(np.linalg.eigvalsh),
    "T.linalg.svdvals": lambda a: np.linalg.svd(a, compute_uv=False),
    "T.linalg.pinv": np.linalg.pinv,
    "T.linalg.expm": _expm,
    "T.linalg.cond": np.linalg.cond,
    "T.linalg.matrix_rank": np.linalg.matrix_rank,
    "T.linalg.trace": lambda a: np.trace(a, axis1=-2, axis2=-1),
    "T.nlinalg.trace": np.trace,
    "T.linalg.solve": np.linalg.solve,
    "T.linalg.solve_triangular": _lower,
    "T.slinalg.solve": np.linalg.solve,
    "T.slinalg.solve_lower_triangular": _lower,
    "T.slinalg.solve_upper_triangular": lambda a, b: _lower(a, b, lower=False),
    "T.linalg.matrix_power": np.linalg.matrix_power,
    "T.linalg.norm": _norm,
    "T.nlinalg.norm": _norm,
    "T.linalg.matrix_norm": lambda a: np.linalg.norm(a, axis=(-2, -1)),
    "T.linalg.vector_norm": np.linalg.norm,
    "T.linalg.multi_dot": np.linalg.multi_dot,
    "T.linalg.block_diag": sl.block_diag,
}  # fmt: skip
