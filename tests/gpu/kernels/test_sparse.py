"""CUDA kernels of sparse products in the emulator: widths, empty rows, dtypes, wrong places."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

import symdnn
import symdnn.sparse as S
import symdnn.tensor as T
from symdnn.gpu.kernels.sparse import SparseProductKernel
from symdnn.graph.type import numpy_dtype
from symdnn.ops.sparse.products import SampledDot, SparseDot
from tests.gpu import emulator
from tests.gpu.table import concrete

needs_emulator = pytest.mark.skipif(not emulator.AVAILABLE, reason="the emulator needs g++")
RNG = np.random.default_rng(5)


def matrix(rows, columns, density, dtype="float32", index="int32"):
    made = scipy.sparse.random_array((rows, columns), density=density, format="csr", rng=RNG)
    made.sort_indices()
    data = RNG.standard_normal(made.nnz).astype(numpy_dtype(dtype))
    return data, made.indices.astype(index), made.indptr.astype(index)


@needs_emulator
def test_products_of_all_widths():
    kernel = SparseProductKernel()
    for width in (None, 1, 2, 3, 7, 32, 33, 70):
        for dtype, index in (("float32", "int32"), ("float64", "int64"), ("bfloat16", "int32")):
            a = matrix(19, 23, 0.3, dtype, index)
            shape = (23,) if width is None else (23, width)
            x = RNG.standard_normal(shape).astype(numpy_dtype(dtype))
            call = concrete(SparseDot(minor=23), [*a, x, np.int64(23)])
            (found,), env = emulator.run(kernel, call, [*a, x, np.int64(23)])
            wanted = call.op.reference(*a, x, np.int64(23)).astype("float64")
            tolerance = 2e-2 if dtype == "bfloat16" else 1e-5
            np.testing.assert_allclose(found.astype("float64"), wanted, tolerance, tolerance)
            assert env.error[0] == 0
            u = RNG.standard_normal((19, *shape[1:])).astype(numpy_dtype(dtype))
            call = concrete(SampledDot(), [a[1], a[2], u, x])
            (found,), _ = emulator.run(kernel, call, [a[1], a[2], u, x])
            wanted = call.op.reference(a[1], a[2], u, x).astype("float64")
            tolerance = 6e-2 if dtype == "bfloat16" else 1e-4
            np.testing.assert_allclose(found.astype("float64"), wanted, tolerance, tolerance)


@needs_emulator
def test_matrices_without_elements_or_rows():
    kernel = SparseProductKernel()
    none, ends = np.zeros(0, "int32"), np.zeros(4, "int32")
    given = [np.zeros(0, "float32"), none, ends, np.ones((5, 2), "float32"), np.int64(5)]
    (found,), _ = emulator.run(kernel, concrete(SparseDot(minor=5), given), given)
    assert np.array_equal(found, np.zeros((3, 2)))
    given[2] = ends[:1]
    call = concrete(SparseDot(minor=5), given)
    assert kernel.launches(call, *views_of(call)) == []


def views_of(call):
    from symdnn.gpu.codegen.launches import contiguous_view

    views = [contiguous_view(i, t) for i, t in enumerate((*call.inputs, *call.outputs))]
    return [*views[:4], 5], views[5:]


@needs_emulator
def test_wrong_places_are_reported_and_not_read():
    data, indices, indptr = matrix(4, 6, 0.5)
    x = np.ones((6, 2), "float32")
    call = concrete(SparseDot(minor=6), [data, indices, indptr, x, np.int64(6)])
    for at, number in ((0, 6), (2, -1)):
        wrong = indices.copy()
        wrong[at] = number
        given = [data, wrong, indptr, x, np.int64(6)]
        _, env = emulator.run(SparseProductKernel(), call, given)
        assert env.error == [1, 7, number, 6]
    wrong = indptr.copy()
    wrong[2] = 99
    _, env = emulator.run(SparseProductKernel(), call, [data, indices, wrong, x, np.int64(6)])
    assert env.error[0] == 1


@pytest.mark.gpu
@pytest.mark.usefixtures("cuda")
def test_a_step_of_training_on_a_device():
    """Products, their gradients and an update of a shared sparse matrix, as on the processor."""
    a = scipy.sparse.random_array((70, 50), density=0.1, format="csr", dtype="float32", rng=RNG)
    start = scipy.sparse.random_array((50, 40), density=0.2, format="csr", dtype="float32", rng=RNG)
    data = RNG.standard_normal((40, 33)).astype("float32")

    def trained(device):
        with symdnn.config.change_flags(device=device):
            graph, x, w = S.csr_array("graph"), T.fmatrix("x"), symdnn.shared(start, "w")
            cost = (T.tanh(S.dot(graph, S.dot(w, x))) ** 2).mean()
            slopes = symdnn.grad(cost, [w, x])
            f = symdnn.function([graph, x], [cost, slopes[1]], updates=[(w, w - slopes[0] * 0.1)])
            found = [f(a, data) for _ in range(4)]
            return [*found[-1], w.get_value().toarray()], f

    wanted, _ = trained("cpu")
    found, f = trained("cuda")
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(x), y, rtol=1e-4, atol=1e-5)
    assert "cuda.sparse" in f.lowering_report().kernels()
