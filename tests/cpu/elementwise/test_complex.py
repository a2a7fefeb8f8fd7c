"""Complex numbers in compiled loops, as pairs of real ones, beside NumPy's functions."""

import numpy as np
import pytest

from symdnn.cpu.elementwise.copies import copy_of
from symdnn.cpu.elementwise.elementwise import ElementwiseKernel
from symdnn.cpu.nest.kernels import NestProductKernel, NestReduceKernel, NestScanKernel
from symdnn.graph.type import TensorType
from symdnn.ops.array.cumulative import CumProd, CumSum
from symdnn.ops.array.reduce import Prod, Sum
from symdnn.ops.elementwise import arithmetic as A
from symdnn.ops.elementwise import comparison as C
from symdnn.ops.elementwise import complexes as X
from symdnn.ops.elementwise import math as M
from symdnn.ops.linalg.products import BatchedDot, Dot
from tests.cpu.harness import call_of, compiled, launched

pytestmark = compiled

DTYPES = pytest.mark.parametrize("dtype", ["complex64", "complex128"])
UNARY = [
    A.Sqrt(), M.Log(), M.Log2(), M.Log10(), M.Exp(), M.Sin(), M.Cos(), M.Tan(), M.Sinh(), M.Cosh(),
    M.Tanh(), A.Abs(), A.Inv(), A.Neg(), X.Conj(), X.Real(), X.Imag(), X.Angle(), C.IsNan(),
    C.IsInf(), C.IsFinite(),
]  # fmt: skip
BINARY = [A.Add(), A.Sub(), A.Mul(), A.TrueDiv(), C.Eq(), C.Neq()]


def named(op):
    return type(op).__name__


def apply(op, *arrays):
    """The kernel's result."""
    out = op.infer(*(TensorType(a.dtype.name, a.shape) for a in arrays))
    return launched(ElementwiseKernel(), call_of(op, arrays, out), arrays)[0]


def normal(rng, *shape, dtype="complex128"):
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)


def every_pair(dtype):
    """All pairs of numbers that are special, small, large, and on both sides of a cut."""
    part = np.dtype(dtype).type(0).real.dtype
    least = np.finfo(part).smallest_subnormal
    most = np.finfo(part).max
    odd = [0.0, -0.0, 1, -1, 0.5, -2.5, 30, -11, 1e-30, 1e30, -3e37, 90, -90, 710, -800, least,
           4 * least, most, -most / 3, np.inf, -np.inf, np.nan]  # fmt: skip
    with np.errstate(over="ignore"):
        odd = np.array(odd).astype(part)
    x = np.empty((odd.size, odd.size), dtype)
    x.real, x.imag = odd[:, None], odd
    return x


def parts_of(y):
    return np.ascontiguousarray(y).view(y.real.dtype).reshape(*y.shape, -1)


def agree(got, want, rtol):
    """Numbers are close, infinities and NaNs at the same places, zeros of the same sign, unless the
    other part is NaN or infinite: C's standard says nothing of those signs, nor of infinities'
    beside NaN."""
    assert got.dtype == want.dtype
    if want.dtype.kind not in "fc":
        return np.testing.assert_array_equal(got, want)
    got, want = parts_of(got), parts_of(want)
    lost = np.isnan(want).any(-1, keepdims=True)
    got, want = (np.where(lost, np.abs(v), v) for v in (got, want))
    np.testing.assert_allclose(got, want, rtol, 4 * np.finfo(got.dtype).smallest_normal)
    signed = np.isfinite(want).all(-1, keepdims=True) & (want == 0)
    np.testing.assert_array_equal(np.signbit(got) & signed, np.signbit(want) & signed)


@DTYPES
@pytest.mark.parametrize("op", UNARY, ids=named)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_odd_numbers_are_numpys(op, dtype):
    x = every_pair(dtype)
    agree(apply(op, x), op.reference(x), 1e-5 if dtype == "complex64" else 1e-13)


@DTYPES
@pytest.mark.parametrize("op", UNARY, ids=named)
def test_functions_are_accurate(op, dtype, rng):
    """Each part within some units in the last place of the number's size."""
    size = np.exp(rng.normal(size=4000))
    x = (size * np.exp(1j * rng.uniform(-np.pi, np.pi, 4000))).astype(dtype)
    got, exact = apply(op, x), type(op).function(x.astype("clongdouble"))
    if got.dtype == bool:
        return np.testing.assert_array_equal(got, exact)
    error = np.abs(got - exact) / np.maximum(np.abs(exact), np.finfo(got.dtype).tiny)
    assert error.max() < 4 * np.finfo(got.dtype).eps, error.max()


@DTYPES
@pytest.mark.parametrize("op", [M.Log(), M.Log2(), M.Log10()], ids=named)
@pytest.mark.parametrize("away", [0, 1e-7, 1e-3, 0.1, 0.5, 80])
def test_a_logarithm_near_the_unit_circle_keeps_its_digits(dtype, op, away, rng):
    """``away`` is how far the logarithm of the size is from 0; 80 overflows squares of float32."""
    size = np.exp(rng.uniform(-away, away, 4000))
    x = (size * np.exp(1j * rng.uniform(-np.pi, np.pi, 4000))).astype(dtype)
    wide = type(op).function(x.astype("clongdouble")).real
    got = apply(op, x).real
    least = 1e-9 if dtype == "complex64" else 1e-19
    np.testing.assert_allclose(got, wide, 4 * np.finfo(dtype).eps, least * 1e-12)


@DTYPES
@pytest.mark.parametrize("op", BINARY, ids=named)
@pytest.mark.parametrize("other", ["complex64", "complex128", "float32", "int8", "bool"])
def test_two_operands(op, dtype, other, rng):
    x = normal(rng, 30, 40, dtype=dtype)
    y = rng.integers(1, 4, (1, 40)).astype(other)
    rtol = 1e-5 if dtype == "complex64" else 1e-13
    agree(apply(op, x, y), op.reference(x, y), rtol)
    agree(apply(op, x.T, y[:, :30]), op.reference(x.T, y[:, :30]), rtol)


@DTYPES
def test_choices_and_casts(dtype, rng):
    x, y = normal(rng, 30, 40, dtype=dtype), rng.normal(size=(30, 40)).astype("float32")
    for condition in (y > 0, (y > 0) * x):
        agree(apply(C.Switch(), condition, x, y), C.Switch().reference(condition, x, y), 0)
    for target in ("complex64", "complex128", "float32", "int16", "bool"):
        agree(apply(A.Cast(target), x), A.Cast(target).reference(x), 0)
    for source in (y, (10 * y).astype("int64"), y.astype("float16")):
        agree(apply(A.Cast(dtype), source), A.Cast(dtype).reference(source), 0)
    agree(apply(X.Complex(), y, -y), X.Complex().reference(y, -y), 0)


@DTYPES
@pytest.mark.parametrize("shape", [(7, 5), (33, 70), (3, 600), (20, 4, 9)], ids=str)
def test_copies_of_other_orders(dtype, shape, rng):
    x = normal(rng, *shape, dtype=dtype)
    for view in (x.T, x[::2], x[..., ::2], x[..., ::-1], np.broadcast_to(x[:1], shape)):
        made = np.zeros(view.shape, dtype)
        copy_of(dtype, view.shape)([view], [made])
        np.testing.assert_array_equal(made, view)


@DTYPES
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (0, 2), (2,), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("kind", [Sum, Prod])
def test_sums_and_products(kind, axes, dtype, rng):
    for shape in ((6, 9, 70), (3, 300, 5)):
        x = normal(rng, *shape, dtype=dtype) / (1 if kind is Sum else 1.7)
        op = kind(axes, False, dtype, dtype)
        for given in (x, x.T.copy().T, x[::-1]):
            wide = op.reference(given.astype("complex128"))
            out = op.infer(TensorType(dtype, given.shape))
            (got,) = launched(NestReduceKernel(), call_of(op, [given], out), [given])
            scale = np.abs(wide).max() if kind is Sum else np.abs(wide)
            error = 1e-5 if dtype == "complex64" else 1e-12
            assert (np.abs(got - wide) <= error * scale + 1e-30).all()


@DTYPES
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op", [CumSum, CumProd], ids=lambda k: k.__name__)
def test_running_sums_and_products(op, axis, dtype, rng):
    x = normal(rng, 21, 34, dtype=dtype)
    for made in (op(axis), op(axis, True), *([CumProd(axis, False, True)] * (op is CumProd))):
        (got,) = launched(NestScanKernel(), call_of(made, [x]), [x])
        want = made.reference(x.astype("complex128"))
        rtol = 1e-5 if dtype == "complex64" else 1e-12
        np.testing.assert_allclose(got, want, rtol, rtol * np.abs(want).max() * (op is CumSum))


@DTYPES
def test_small_products(dtype, rng):
    rtol = 1e-5 if dtype == "complex64" else 1e-13
    for m, k, n in ((2, 2, 2), (3, 3, 1), (1, 8, 8), (5, 7, 6)):
        x, y = normal(rng, 20, m, k, dtype=dtype), normal(rng, 20, k, n, dtype=dtype)
        for op, a, b in ((BatchedDot(), x, y), (Dot(), x[0], y[0])):
            out = op.infer(*(TensorType(dtype, v.shape) for v in (a, b)))
            (got,) = launched(NestProductKernel(), call_of(op, [a, b], out), [a, b])
            assert np.abs(got - a @ b).max() <= 5 * rtol
