"""Kernels whose blocks wait for one another, or have odd rows, with millions of elements."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

import symdnn
import symdnn.tensor as T
from symdnn.errors import IndexOutOfRange
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.array.advanced_index import InBounds
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]


def computed(make, *arrays):
    """What a function of these arrays returns on the device, as on the host."""
    xs = [TensorType(a.dtype.name, a.shape)() for a in arrays]
    with symdnn.config.change_flags(device="cuda"):
        f = symdnn.function(xs, make(*xs))
    first = np.asarray(f(*arrays))
    for _ in range(3):  # captured, and again
        assert np.array_equal(np.asarray(f(*arrays)).view("uint8"), first.view("uint8"))
    return first


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "bfloat16", "float64", "int8", "uint16", "int32", "int64"]
)
def test_long_sorts(dtype, rng):
    for shape, axis in (((1_500_001,), 0), ((3, 300_000), 1), ((70_000, 5), 0)):
        x = (rng.standard_normal(shape) * 40).astype(numpy_dtype(dtype))
        wide = x.astype("float64") if dtype == "bfloat16" else x
        if dtype.startswith(("f", "b")):
            flat = x.reshape(-1)
            flat[::1001], flat[5::1001], flat[7::1001], flat[9::1001] = 0.0, -0.0, np.inf, -np.inf
            flat[:3] = np.nan
            wide = x.astype("float64")
        wanted = np.argsort(wide, axis, kind="stable")
        order = computed(lambda v, a=axis: T.argsort(v, a), x)
        np.testing.assert_array_equal(order, wanted)
        found = computed(lambda v, a=axis: T.sort(v, a), x).astype(wide.dtype)
        np.testing.assert_array_equal(found, np.take_along_axis(wide, wanted, axis))


def test_a_sort_of_equal_numbers_and_of_few(rng):
    for x in (np.ones(2_000_000, "float32"), rng.integers(0, 3, 2_000_000).astype("int32")):
        order = computed(lambda v: T.argsort(v, 0), x)
        np.testing.assert_array_equal(order, np.argsort(x, kind="stable"))
        np.testing.assert_array_equal(computed(lambda v: T.sort(v, 0), x), np.sort(x))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("kind", [Softmax, LogSoftmax, SoftmaxGrad, LogSoftmaxGrad])
def test_softmax_along_long_columns(kind, dtype, rng):
    for shape, axis in (((9000, 36), 0), ((2365, 1774), 0), ((2, 9001, 131), 1), ((70_000, 3), 0)):
        first = rng.normal(size=shape)
        if kind in (SoftmaxGrad, LogSoftmaxGrad):
            made = (scipy.special.softmax if kind is SoftmaxGrad else scipy.special.log_softmax)(
                first, axis
            )
            given = [made, rng.normal(size=shape)]
        else:
            given = [first]
        arrays = [a.astype(numpy_dtype(dtype)) for a in given]
        op = kind(axis)
        (wanted,) = op.compute(*(a.astype("float64") for a in arrays))
        found = computed(op, *arrays).astype("float64")
        rtol = {"float32": 3e-5, "bfloat16": 2e-2, "float64": 1e-10}[dtype]
        np.testing.assert_allclose(found, wanted, rtol, rtol * np.abs(wanted).max())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float64"])
@pytest.mark.parametrize("shape", [(1673, 2509), (1024, 2048), (1001, 1024), (17, 5000)])
def test_transposed_operands_of_odd_rows(dtype, shape, rng):
    x, y = (rng.integers(-50, 50, s).astype(numpy_dtype(dtype)) for s in (shape, shape[::-1]))
    np.testing.assert_array_equal(computed(lambda a, b: a + b.T, x, y), x + y.T)
    np.testing.assert_array_equal(computed(lambda a: a.T.flatten(), x), x.T.ravel())
    mask = y > 0
    found = computed(lambda a, b, m: T.switch(m.T, a.T, b).T, y, x, mask)
    np.testing.assert_array_equal(found, np.where(mask.T, y.T, x).T)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool"])
@pytest.mark.parametrize("shape", [(4099, 323), (1001, 6689), (30_000, 33), (5, 400_003)])
def test_sums_and_places_of_lines_that_begin_anywhere(dtype, shape, rng):
    x = rng.integers(-50, 50, shape).astype(numpy_dtype(dtype))
    wide = x.astype("int64")
    for axis in (0, 1):
        found = computed(lambda v, a=axis: v.sum(a, dtype="float32", acc_dtype="float32"), x)
        np.testing.assert_array_equal(found, wide.sum(axis))
        found = computed(lambda v, a=axis: T.argmax(v, a), x)
        np.testing.assert_array_equal(found, wide.argmax(axis))
        if dtype != "bool":
            np.testing.assert_array_equal(
                computed(lambda v, a=axis: T.min(v, a), x).astype("int64"), wide.min(axis)
            )
        if dtype in ("float32", "bfloat16"):
            found = computed(lambda v, a=axis: T.logsumexp(v, a), x).astype("float64")
            wanted = scipy.special.logsumexp(wide.astype("float64"), axis)
            # Of five numbers some results are near 0: the difference of the largest and a log.
            rtol = 1e-6 if dtype == "float32" else 8e-3
            np.testing.assert_allclose(found, wanted, rtol, 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(4099, 323), (1001, 6689), (150, 50_257), (30_000, 67)])
def test_norms_of_rows_that_begin_anywhere(dtype, shape, rng):
    x = rng.standard_normal(shape).astype(numpy_dtype(dtype))
    wide = x.astype("float64")
    tol = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}[dtype]
    centred = wide - wide.mean(1, keepdims=True)
    norm = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    makes = [
        (T.nnet.softmax, scipy.special.softmax(wide, 1)),
        (lambda v: LogSoftmax(1)(v), scipy.special.log_softmax(wide, 1)),
        (lambda v: T.nnet.layer_norm(v), norm),
        (lambda v: v.var(1), wide.var(1)),
        (lambda v: v.max(1) - v.mean(1), wide.max(1) - wide.mean(1)),
    ]
    for make, wanted in makes:
        found = computed(make, x).astype("float64")
        np.testing.assert_allclose(found, wanted, tol, tol * np.abs(wanted).max())


@pytest.mark.parametrize("shape", [(1673, 1255), (1024, 512), (3, 400_003)])
def test_transposed_complex_numbers(shape, rng):
    x, y = (
        (rng.standard_normal(s) + 1j * rng.standard_normal(s)).astype("complex64")
        for s in (shape, shape[::-1])
    )
    np.testing.assert_array_equal(computed(lambda a, b: a - b.T, x, y), x - y.T)
    for make, right in ((T.sin, np.sin), (T.exp, np.exp), (T.log10, np.log10), (T.cosh, np.cosh),
                        (T.tanh, np.tanh), (T.expm1, np.expm1)):  # fmt: skip
        wanted = right(y.T.astype("complex128"))
        np.testing.assert_allclose(computed(lambda b, f=make: f(b.T), y), wanted, 2e-5, 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float64"])
def test_arrays_of_odd_rows_beside_repeated_ones(dtype, rng):
    def drawn(*shape):
        return rng.integers(-9, 9, shape).astype(numpy_dtype(dtype))

    for shape in ((2003, 6689), (70_001, 33), (400_003, 3), (3, 1_000_003), (301, 6690)):
        x, row, other = drawn(*shape), drawn(shape[1]), drawn(shape[1])
        found = computed(lambda a, b: a - b, x, row)
        np.testing.assert_array_equal(found, x - row)
        found = computed(lambda a, b, c: T.maximum(a, b) - c, x, row, other)
        np.testing.assert_array_equal(found, np.maximum(x, row) - other)
        column = drawn(shape[0], 1)
        found = computed(lambda a, b, c: a - b + c, x, row, column)
        np.testing.assert_array_equal(found, x - row + column)
    x, rows = drawn(37, 129, 1001), drawn(37, 1, 1001)
    np.testing.assert_array_equal(computed(lambda a, b: a - b, x, rows), x - rows)


def test_large_index_arrays_are_looked_at(rng):
    for shape, dtype in (((1774, 2365), "int64"), ((1_000_003,), "int8"), ((70_001,), "int32")):
        index = rng.integers(-5, 5, shape).astype(dtype)
        for turned in (False, True):
            see = (lambda v: InBounds()(v.T, 5)) if turned else (lambda v: InBounds()(v, 5))
            np.testing.assert_array_equal(computed(see, index), index.T if turned else index)
            wrong = index.copy()
            wrong.reshape(-1)[-1] = 5
            with pytest.raises(IndexOutOfRange, match="index 5 is out of range"):
                computed(see, wrong)


def test_zeta_of_float32(rng):
    """A few units in the last place, in float for usual operands and in double for others."""
    ranges = [((1.0001, 10), (0.001, 1000)), ((1.1, 9), (0.5, 30)), ((10, 60), (0.5, 90)),
              ((1.5, 9), (1e3, 1e6))]  # fmt: skip
    for low_high, of_q in ranges:
        s, q = (rng.uniform(*r, 20_000).astype("float32") for r in (low_high, of_q))
        wanted = scipy.special.zeta(s.astype("float64"), q.astype("float64"))
        seen = (wanted > 1e-37) & (wanted < 1e38)
        found = computed(T.zeta, s, q)
        np.testing.assert_allclose(found[seen], wanted[seen], 3e-6)


def test_square_roots_of_complex64(rng):
    sizes = np.exp(rng.uniform(-80, 80, 200_000))
    x = (sizes * np.exp(1j * rng.uniform(-np.pi, np.pi, 200_000))).astype("complex64")
    x[:6] = 0, -1, complex(-1, -0.0), np.inf, complex(0, -np.inf), complex(-np.inf, 1)
    wanted = np.sqrt(x.astype("complex128"))
    found = computed(T.sqrt, x)
    with np.errstate(invalid="ignore"):
        error = np.abs(found - wanted)[6:] / np.abs(wanted)[6:]
    assert error.max() < 4 * np.finfo("float32").eps
    np.testing.assert_array_equal(found[:6], wanted[:6].astype("complex64"))


def test_transforms_of_no_lines():
    x = np.zeros((0, 8), "float32")
    assert computed(T.fft.rfft, x).shape == (0, 5)
    assert computed(T.fft.fft, x).shape == (0, 8)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize(
    "shape", [(3001, 6689), (2500, 4203), (150, 50_257), (70, 151_937)], ids=str
)
def test_rows_that_blocks_share_or_read_ahead(shape, dtype, rng):
    x = (4 * rng.standard_normal(shape)).astype(numpy_dtype(dtype))
    tol = {"float32": 2e-5, "bfloat16": 1e-2, "float64": 1e-11}[dtype]
    wide = x.astype("float64")
    found = computed(lambda v: T.nnet.softmax(v), x)
    np.testing.assert_allclose(np.float64(found), scipy.special.softmax(wide, 1), tol, 1e-30)
    found = computed(lambda v: T.nnet.layer_norm(v), x)
    centred = wide - wide.mean(1, keepdims=True)
    wanted = centred / np.sqrt((centred * centred).mean(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(np.float64(found), wanted, tol, tol)


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "bfloat16"])
def test_large_narrow_transposed_arrays(dtype, rng):
    for shape in ((3001, 2747), (1, 2047, 1999), (5, 640, 333)):
        x = (40 * rng.standard_normal(shape)).astype(numpy_dtype(dtype))
        order = (0, 2, 1) if len(shape) == 3 else (1, 0)
        found = computed(lambda v, o=order: v.transpose(*o), x)
        assert found.tobytes() == np.ascontiguousarray(x.transpose(order)).tobytes()
