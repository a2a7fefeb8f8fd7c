"""Drawers of linear algebra by path.

Matrices are well away from singular ones, so that rounding decides nothing. Factors whose signs are
arbitrary are drawn by their records in the op table.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from tests.fuzz.drawing import Call, Drawer, call
from tests.fuzz.growth import Growth, Term

_FLOATS = ["float64", "float64", "float32"]


def regular(g: Growth, stacked: bool = True, positive: bool = False) -> Term:
    """A new matrix, or a stack, with distinct eigenvalues and singular values."""
    n = g.integer(1, 5)
    lead = tuple(g.integer(1, 3) for _ in range(g.integer(0, 2))) if stacked else ()
    x = 0.2 * g.rng.standard_normal((*lead, n, n)) + np.diag(1.0 + np.arange(n))
    if positive:
        x = x @ np.swapaxes(x, -1, -2)
    dtype = g.of(_FLOATS)
    return g.fresh(x.shape, dtype, x.astype(dtype))


def of_one(positive: bool = False, stacked: bool = True, **options: Any) -> Drawer:
    return lambda g: call(regular(g, stacked, positive), **options)


def system(positive: bool = False, stacked: bool = True, **options: Any) -> Drawer:
    def draw(g: Growth) -> Call:
        a = regular(g, stacked, positive)
        shape = (*a.shape[:-1], g.integer(1, 3))
        return call(a, g.fresh(shape, a.dtype), **options)

    return draw


def power(g: Growth) -> Call:
    return call(regular(g), g.integer(-2, 4))


def norm(g: Growth) -> Call:
    a = regular(g)
    order, axis = g.of(
        [(None, None), (2, -1), (1, (-2, -1)), ("fro", (-1, -2)), (np.inf, (-2, -1)), (3, 0)]
    )
    return call(a, order, axis, g.chance(0.5))


def theanos_norm(g: Growth) -> Call:
    return call(regular(g, stacked=False), g.of([None, "fro", "inf", "-inf", 1]))


def chain(g: Growth) -> Call:
    sizes = [g.integer(1, 5) for _ in range(4)]
    return call([g.fresh(s, "float64") for s in pairwise(sizes)])


def blocks(g: Growth) -> Call:
    return call(*(g.fresh((g.integer(1, 4), g.integer(1, 4)), "float64") for _ in range(2)))


#: Drawers by path; ``oracle_matrix.py`` has the functions.
MATRICES: dict[str, Drawer] = {
    "T.linalg.inv": of_one(),
    "T.nlinalg.matrix_inverse": of_one(),
    "T.linalg.det": of_one(),
    "T.linalg.slogdet": of_one(),
    "T.linalg.cholesky": of_one(True),
    "T.linalg.eigvalsh": of_one(True),
    "T.linalg.svdvals": of_one(),
    "T.linalg.pinv": of_one(),
    "T.linalg.expm": of_one(),
    "T.linalg.cond": of_one(),
    "T.linalg.matrix_rank": of_one(),
    "T.linalg.trace": of_one(),
    "T.nlinalg.trace": of_one(stacked=False),
    "T.linalg.solve": system(),
    "T.linalg.solve_triangular": system(lower=True),
    "T.slinalg.solve": system(stacked=False),
    "T.slinalg.solve_lower_triangular": system(stacked=False),
    "T.slinalg.solve_upper_triangular": system(stacked=False),
    "T.linalg.matrix_power": power,
    "T.linalg.norm": norm,
    "T.nlinalg.norm": theanos_norm,
    "T.linalg.matrix_norm": of_one(),
    "T.linalg.vector_norm": of_one(),
    "T.linalg.multi_dot": chain,
    "T.linalg.block_diag": blocks,
}  # fmt: skip
