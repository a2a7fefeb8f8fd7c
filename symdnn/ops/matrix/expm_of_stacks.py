"""Exponentials of matrices, all of a stack at once, by NumPy."""

from __future__ import annotations

from functools import cache
from math import comb, factorial

import numpy as np

from symdnn.graph.typing import Array

#: Largest 1-norms of matrices of which the Pade approximation of this degree is as exact as the
#: dtype: N. J. Higham, "The scaling and squaring method for the matrix exponential revisited",
#: 2005, tables 2.3 and (float32) 10.2 of his "Functions of Matrices", 2008.
BOUNDS = {
    8: {3: 1.495585217958292e-2, 5: 2.539398330063230e-1, 7: 9.504178996162932e-1,
        9: 2.097847961257068, 13: 5.371920351148152},
    4: {3: 4.258730016922831e-1, 5: 1.880152677804762, 7: 3.925724783138660},
}  # fmt: skip


def expm_of_stack(a: Array) -> Array:
    """The exponential of each matrix of a stack (..., n, n), by Pade approximation with scaling
    and squaring. A matrix that is not finite gives NaN.

    The degree is that which the largest matrix needs; each is scaled by its own power of 2. Errors
    are some 1e-15 of the norm, where those of SciPy's (1.17) are up to 1e-12.
    """
    if not a.size:
        return np.array(a)
    with np.errstate(all="ignore"):
        norms = np.abs(a).sum(-2).max(-1)
        bounds = BOUNDS[np.finfo(a.dtype).dtype.itemsize]
        degree = next((d for d, bound in bounds.items() if norms.max() <= bound), max(bounds))
        finite = np.isfinite(norms)
        if not finite.all():
            a = np.where(finite[..., None, None], a, 0)
            norms = np.where(finite, norms, 0)
        squarings = np.frexp(norms / bounds[degree])[1].clip(min=0)
        scale = np.ldexp(np.ones_like(norms), -squarings)
        y = _pade(a * scale[..., None, None].astype(a.dtype), degree)
        for k in range(int(squarings.max(initial=0))):
            more = squarings > k
            y[more] = y[more] @ y[more]
        y[~finite] = np.nan
    return y


def _pade(a: Array, degree: int) -> Array:
    """The diagonal Pade approximation ``(v - u)^-1 (v + u)``, u of odd and v of even powers."""
    b = coefficients(degree)
    one = np.eye(a.shape[-1], dtype=a.dtype)
    even = [one, a @ a]
    for _ in range(2, min(degree // 2, 3 if degree == 13 else 4) + 1):
        even.append(even[-1] @ even[1])

    def of(first: int) -> Array:
        own: Array = sum((b[2 * k + first] * p for k, p in enumerate(even)), 0 * one)
        if degree < 13:
            return own
        high = sum(b[2 * k + first + 6] * even[k] for k in (1, 2, 3))
        return own + even[3] @ high

    u, v = a @ of(1), of(0)
    return np.linalg.solve(v - u, v + u).astype(a.dtype, copy=False)


@cache
def coefficients(m: int) -> list[float]:
    """Of the powers in the approximation of degree ``m``, as integers: the highest has 1."""
    return [float(comb(m, k) * factorial(2 * m - k) // factorial(m)) for k in range(m + 1)]
