"""Small matrices of float64, and vectors of numbers, are compiled once a plan is called often."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config


@pytest.fixture
def compiled():
    with config.change_flags(**{"cpu.compile": "always"}):
        yield


def kernels(f, *arguments):
    f(*arguments)
    return [line.split()[2] for line in str(f.lowering_report()).splitlines() if " cpu " in line]


def test_small_products_of_float64_are_loops(rng, compiled):
    a, b = rng.normal(size=(3, 4)), rng.normal(size=(4, 5))
    stack = rng.normal(size=(2, 5, 3))
    x, y, z = T.dmatrix("x"), T.dmatrix("y"), T.dtensor3("z")
    f = symdnn.function([x, y, z], [T.dot(x, y), T.dot(y.T, x.T), T.batched_dot(z, z.mT)])
    for got, want in zip(f(a, b, stack), [a @ b, b.T @ a.T, stack @ stack.mT], strict=True):
        np.testing.assert_allclose(got, want, 1e-13)
    assert kernels(f, a, b, stack).count("llvm.small") == 3
    large = rng.normal(size=(70, 70))
    assert kernels(symdnn.function([x], T.dot(x, x)), large) == ["numpy.matmul"]


@pytest.mark.parametrize("dtype", ["float64", "complex64", "complex128"])
@pytest.mark.parametrize(
    ("sizes", "loops"),
    [((900, 2, 2, 2), 1), ((300, 3, 3, 1), 1), ((20, 40, 3, 50), 1), ((9, 1, 300, 40), 1),
     ((9, 30, 31, 32), 1), ((9, 70, 71, 72), 0)],
    ids=str,
)  # fmt: skip
def test_stacks_of_small_or_thin_matrices_are_loops(sizes, loops, dtype, rng, compiled):
    stack, rows, terms, columns = sizes
    parts = [rng.normal(size=(2, stack, *s)) for s in ((rows, terms), (terms, columns))]
    a, b = ((p[0] + 1j * p[1]).astype(dtype) if dtype[0] == "c" else p[0] for p in parts)
    x, y = T.tensor3("x", dtype=dtype), T.tensor3("y", dtype=dtype)
    f = symdnn.function([x, y], T.batched_dot(x, y))
    rtol = 1e-4 if dtype == "complex64" else 1e-12
    np.testing.assert_allclose(f(a, b), a @ b, rtol, rtol)
    found = kernels(f, a, b)
    assert found.count("llvm.nest") + found.count("llvm.small") == loops


@pytest.mark.parametrize("dtype", ["float64", "float32", "int8", "bool"])
def test_vectors_of_numbers_are_copies(dtype, rng, compiled):
    data = rng.integers(0, 2, (3, 4)).astype(dtype)
    x = T.matrix("x", dtype=dtype)
    f = symdnn.function([x], T.stack([x[0, 1], x[2, 3], x[1, 0], x[-1, -1]]))
    np.testing.assert_array_equal(f(data), data[[0, 2, 1, -1], [1, 3, 0, -1]])
    assert "llvm.move" in kernels(f, data)
