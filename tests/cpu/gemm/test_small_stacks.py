"""Products of small matrices and of stacks of them: values for any strides, what is refused."""

import numpy as np
import pytest

from symdnn.config import config
from symdnn.cpu.gemm.small_stacks import SmallStacksKernel
from symdnn.graph.type import TensorType
from symdnn.ops.linalg.products import BatchedDot, Dot
from symdnn.ops.vendor.onednn import OneDnnMatmul
from tests.cpu.harness import call_of, compiled, launched

pytestmark = compiled
KERNEL = SmallStacksKernel()
DTYPES = ("float32", "float64", "complex64", "complex128")


def product_of(x, y):
    op = OneDnnMatmul(BatchedDot()) if x.dtype == "float32" else BatchedDot()
    op = op if x.ndim == 3 else Dot()
    shape = (*max(x.shape[:-2], y.shape[:-2]), x.shape[-2], y.shape[-1])
    return call_of(op, (x, y), TensorType(x.dtype.name, shape))


def numbers(rng, dtype, *shape):
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if dtype[0] == "c" else x).astype(dtype)


def check(arrays, tolerance):
    wide = [a.astype("complex128" if a.dtype.kind == "c" else "d") for a in arrays]
    bits = set()
    for count in (1, 3):
        with config.change_flags(**{"openmp.threads": count}):
            (found,) = launched(KERNEL, product_of(*arrays), arrays)
        np.testing.assert_allclose(found, np.matmul(*wide), rtol=tolerance, atol=tolerance)
        bits.add(found.tobytes())
    assert len(bits) == 1


SIZES = [
    (7, 1, 1, 1), (50, 2, 2, 2), (9, 3, 3, 1), (9, 3, 1, 3), (6, 1, 8, 8), (5, 5, 7, 6),
    (3, 8, 8, 8), (2, 9, 17, 11), (3, 33, 17, 9), (2, 25, 13, 33), (1, 30, 30, 30),
    (4000, 8, 8, 9), (3, 7, 5, 50), (2, 2, 70, 40),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_values_of_all_sizes(rng, dtype, sizes):
    stack, m, k, n = sizes
    x, y = numbers(rng, dtype, stack, m, k), numbers(rng, dtype, stack, n, k).swapaxes(1, 2)
    check((x, y), 1e-4 if x.real.dtype == "f" else 1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(9, 3, 3, 1), (9, 5, 7, 6), (3, 9, 17, 11)], ids=str)
def test_values_for_any_strides(rng, dtype, sizes):
    stack, m, k, n = sizes
    x, y = numbers(rng, dtype, stack, m, k), numbers(rng, dtype, stack, k, n)
    turned = [np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2) for a in (x, y)]
    wide = np.repeat(np.repeat(y, 2, 1), 2, 2)[:, ::2, ::2]
    tolerance = 1e-4 if x.real.dtype == "f" else 1e-12
    for arrays in (
        (x, y), (turned[0], y), (x, turned[1]), (x[::-1], y[:, ::-1, ::-1]), (x, wide),
        (x[:1], y), (x, y[:1]), (np.broadcast_to(x[:, :1], x.shape), y),
        (x, np.broadcast_to(y[:, :, :1], y.shape)),
    ):  # fmt: skip
        check(arrays, tolerance)
    if dtype != "float32":
        check((x[0], turned[1][0]), tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinity_stay_where_they_are(rng, dtype):
    x, y = numbers(rng, dtype, 5, 3, 4), numbers(rng, dtype, 5, 4, 5)
    x[2, 1, 0], y[3, 2, 1] = np.nan, np.inf
    (found,) = launched(KERNEL, product_of(x, y), (x, y))
    with np.errstate(invalid="ignore"):
        wrong = ~np.isfinite(np.matmul(x, y))
    assert wrong.sum() == 5 + 3
    np.testing.assert_array_equal(~np.isfinite(found), wrong)


def test_what_is_refused():
    for shapes in (
        ((9, 70, 70), (9, 70, 70)),
        ((900, 8, 80), (900, 80, 1)),
        ((50, 60), (60, 70)),
        ((2, 1, 500), (2, 500, 90)),
        ((3, 4, 0), (3, 0, 4)),
    ):
        assert KERNEL.refuses(product_of(*(np.ones(s, "D") for s in shapes)))
    assert KERNEL.refuses(product_of(np.ones((9, 4, 4), "e"), np.ones((9, 4, 4), "e")))
