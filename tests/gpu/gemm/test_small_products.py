"""Products of many small matrices, on the emulated device: numbers of NumPy, any strides."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from tests.seeded import new_rng

CUDA = symdnn.Mode(target="cuda:sm_90").excluding("cudnn")
KERNEL = "cuda.small_products"


def kernels(f):
    return {c.kernel.name for p in f.plans() for c in p.specialised.choices.values()}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", [(2, 2, 2), (4, 3, 1), (1, 4, 4), (3, 1, 2)])
def test_numbers_are_those_of_numpy(fake_device, dtype, sizes):
    m, k, n = sizes
    rng = new_rng()
    x, y = (rng.standard_normal((4100, *s)).astype(dtype) for s in ((m, k), (k, n)))
    a, b = (T.TensorType(dtype, (None,) * 3)() for _ in range(2))
    product = T.batched_dot(a, b)
    f = symdnn.function([a, b], product, mode=CUDA)
    np.testing.assert_allclose(f(x, y), x @ y, rtol=1e-5, atol=1e-6)
    assert KERNEL in kernels(f)


def test_gradients_read_transposed_matrices_and_every_second_one(fake_device):
    rng = new_rng()
    value = rng.standard_normal((8200, 2, 3))
    a = T.dtensor3("a")
    product = T.batched_dot(a[::2].dimshuffle(0, 2, 1), a[1::2])
    cost = (product**2).sum()
    outs = [product, symdnn.grad(cost, a)]
    f = symdnn.function([a], outs, mode=CUDA)
    g = symdnn.function([a], outs, mode=symdnn.Mode(target="cpu"))
    for u, v in zip(f(value), g(value), strict=True):
        np.testing.assert_allclose(u, v, rtol=1e-10, atol=1e-12)
    assert KERNEL in kernels(f)


def test_one_matrix_serves_a_stack(fake_device):
    rng = new_rng()
    x, y = rng.standard_normal((1, 2, 3)), rng.standard_normal((5000, 3, 2))
    a, b = T.TensorType("float64", (1, None, None))(), T.dtensor3()
    f = symdnn.function([a, b], T.batched_dot(a, b), mode=CUDA)
    np.testing.assert_allclose(f(x, y), x @ y, rtol=1e-12)


@pytest.mark.parametrize("sizes", [(4, 4), (3, 1), (1, 2)])
def test_many_rows_times_a_small_matrix(fake_device, sizes):
    rng = new_rng()
    x, y = rng.standard_normal((16390, sizes[0])), rng.standard_normal(sizes)
    a, b = T.dmatrices("a", "b")
    f = symdnn.function([a, b], T.dot(a, b), mode=CUDA)
    np.testing.assert_allclose(f(x, y), x @ y, rtol=1e-12, atol=1e-13)
    assert KERNEL in kernels(f)


@pytest.mark.parametrize("count", [5000, None, 12])
def test_what_follows_many_of_them_is_elementwise(count):
    """A GEMM takes an addend into its kernel, but of few small matrices only."""
    a, b, c = (T.TensorType("float32", (count, 4, 4))() for _ in range(3))
    names = [type(n.op).__name__ for n in symdnn.function(
        [a, b, c], T.matmul(a, b) - c, mode=symdnn.Mode(target="cuda:sm_90")
    ).fgraph.toposort()]  # fmt: skip
    assert ("GpuGemm" in names) == (count == 12)


@pytest.mark.parametrize("rows", [1 << 15, None, 12])
def test_what_follows_many_rows_is_elementwise(rows):
    a, b, c = T.TensorType("float32", (rows, 4))(), T.TensorType("float32", (4, 3))(), T.fvector()
    names = [type(n.op).__name__ for n in symdnn.function(
        [a, b, c], T.dot(a, b) + c, mode=symdnn.Mode(target="cuda:sm_90")
    ).fgraph.toposort()]  # fmt: skip
    assert ("GpuGemm" in names) == (rows != 1 << 15)
