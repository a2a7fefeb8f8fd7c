"""Compiled sparse products: sizes, threads, skewed rows, wrong places."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from symdnn.config import config
from symdnn.cpu.sparse.products import SparseProductKernel
from symdnn.errors import IndexOutOfRange
from symdnn.ops.sparse.products import SampledDot, SparseDot
from tests.gpu.table import concrete

RNG = np.random.default_rng(6)


def run(op, given):
    """What the compiled kernel gives, in memory that held other numbers."""
    call = concrete(op, given)
    kernel = SparseProductKernel()
    with config.change_flags(**{"cpu.compile": "always"}):
        assert kernel.refuses(call) is None
        out = np.full(call.outputs[0].shape, np.nan, call.outputs[0].numpy)
        kernel.bind(call)(given, [out])
    return out


def agree(op, given):
    wanted, found = op.reference(*given), run(op, given)
    tolerance = 1e-4 if wanted.dtype == "float32" else 1e-11
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
    with config.change_flags(**{"openmp.threads": 1}):
        assert np.array_equal(run(op, given), found), "other bits with one thread"


def skewed(rows, columns, dtype, index):
    """Most elements in the first and the last row, others without any."""
    dense = np.zeros((rows, columns))
    dense[0] = dense[-1] = 1
    dense[rows // 2, : columns // 3] = 1
    made = scipy.sparse.csr_array(dense)
    return RNG.standard_normal(made.nnz).astype(dtype), *(
        v.astype(index) for v in (made.indices, made.indptr)
    )


@pytest.mark.parametrize(("dtype", "index"), [("float32", "int32"), ("float64", "int64")])
def test_widths_and_rows(dtype, index):
    for rows, columns in ((1, 1), (7, 300), (130, 40)):
        for width in (None, 1, 3, 16, 33, 64, 129):
            a = skewed(rows, columns, dtype, index)
            tail = () if width is None else (width,)
            x = RNG.standard_normal((columns, *tail)).astype(dtype)
            g = RNG.standard_normal((rows, *tail)).astype(dtype)
            size = np.int64(columns)
            agree(SparseDot(minor=columns), [*a, x, size])
            agree(SparseDot(True, columns), [*a, g, size])
            agree(SampledDot(), [a[1], a[2], g, x])


def test_many_rows_are_shared_by_threads():
    made = scipy.sparse.random_array((5000, 400), density=0.02, format="csr", rng=RNG)
    made.sort_indices()
    x = RNG.standard_normal((400, 48))
    parts = [made.data, made.indices, made.indptr]
    agree(SparseDot(minor=400), [*parts, x, np.int64(400)])
    agree(SparseDot(True, 400), [*parts, RNG.standard_normal((5000, 48)), np.int64(400)])


def test_strided_operands_are_copied():
    a = skewed(6, 9, "float64", "int32")
    x = RNG.standard_normal((4, 9)).T
    agree(SparseDot(minor=9), [*a, x, np.int64(9)])


def test_places_that_no_matrix_has_are_errors():
    a = skewed(5, 8, "float64", "int32")
    x, size = RNG.standard_normal((8, 3)), np.int64(8)
    right = [*a, x, size]
    op = SparseDot(minor=8)
    call, kernel = concrete(op, right), SparseProductKernel()
    with config.change_flags(**{"cpu.compile": "always"}):
        launch = kernel.bind(call)
    out = np.empty((5, 3))
    for which, at, number in ((1, 0, 8), (1, 3, -1), (2, 1, 99), (2, 2, -5)):
        wrong = [v.copy() for v in right]
        wrong[which][at] = number
        with pytest.raises(IndexOutOfRange, match="wanted"):
            launch(wrong, [out])
    launch(right, [out])
    np.testing.assert_allclose(out, op.reference(*right), rtol=1e-12)


def test_what_it_leaves_to_scipy():
    kernel = SparseProductKernel()
    a = skewed(3, 4, "complex128", "int32")
    z = RNG.standard_normal((4, 2)) + 0j
    assert "complex128" in kernel.refuses(concrete(SparseDot(minor=4), [*a, z, np.int64(4)]))
    a = skewed(3, 4, "float64", "int32")
    none = [*a, np.zeros((4, 0)), np.int64(4)]
    assert kernel.refuses(concrete(SparseDot(minor=4), none)) == "there are no elements"
