"""Products with few results and long sums: values, of lines with any strides."""

from __future__ import annotations

import numpy as np
import pytest

from symdnn.cpu.gemm.few_results import FewResultsKernel
from symdnn.graph.type import TensorType
from symdnn.ops.linalg.products import Dot
from tests.cpu.harness import call_of, launched
from tests.seeded import new_rng

SIZES = [(2, 600, 2), (3, 1999, 5), (16, 300, 4), (5, 1000, 6), (7, 257, 3), (16, 129, 6)]
VIEWS = {
    "plain": (lambda a: a, lambda b: b),
    "transposed": (lambda a: a.T.copy().T, lambda b: b.T.copy().T),
    "every second": (lambda a: a.repeat(2, 1)[:, ::2], lambda b: b.repeat(2, 0)[::2]),
    "backwards": (lambda a: a[:, ::-1].copy()[:, ::-1], lambda b: b[:, ::-1].copy()[:, ::-1]),
    "of wider rows": (lambda a: np.hstack([a, a])[:, : a.shape[1]],
                      lambda b: np.hstack([b, b])[:, : b.shape[1]]),
}  # fmt: skip


@pytest.mark.parametrize("views", VIEWS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products(views, dtype):
    rng, kernel = new_rng(), FewResultsKernel()
    for rows, terms, columns in SIZES:
        a, b = rng.normal(size=(rows, terms)), rng.normal(size=(terms, columns))
        a, b = (f(x.astype(dtype)) for f, x in zip(VIEWS[views], (a, b)))
        call = call_of(Dot(), [a, b], TensorType(dtype, (rows, columns)))
        (found,) = launched(kernel, call, [a, b])
        wide = a.astype("float64") @ b.astype("float64")
        tolerance = 1e-5 if dtype == "float32" else 1e-13
        np.testing.assert_allclose(found, wide, tolerance, tolerance * terms**0.5)


def test_what_it_leaves_to_others():
    kernel = FewResultsKernel()
    for rows, terms, columns in [(1, 999, 3), (3, 999, 1), (17, 999, 3), (3, 999, 7), (3, 100, 3)]:
        given = [np.zeros((rows, terms)), np.zeros((terms, columns))]
        call = call_of(Dot(), given, TensorType("float64", (rows, columns)))
        assert "few results" in (kernel.refuses(call) or "")
