"""Running sums, products, extremes and recurrences by compiled loops, against the references."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.nest.kernels import NestScanKernel
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.array.cumulative import (
    CumMax,
    CumMin,
    CumProd,
    CumSum,
    ForwardFill,
    LinearRecurrence,
)
from tests.cpu.harness import call_of, compiled, launched

pytestmark = compiled

#: Whole vectors of columns and rows, some over, and fewer than a vector.
SHAPES = [((5,), 0), ((9, 32), 0), ((2, 7, 19), 1), ((4, 3, 5), 1), ((11, 30), 1), ((2, 30), 1)]
OPS = [CumSum, CumProd, CumMax, CumMin, LinearRecurrence]
KERNEL = NestScanKernel()


def apply(op, *arrays):
    """The kernel's result."""
    return launched(KERNEL, call_of(op, arrays), arrays)[0]


@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
@pytest.mark.parametrize("kind", OPS, ids=lambda k: k.__name__)
def test_it_agrees_with_the_reference(rng, kind, shape, axis, dtype, reverse):
    arrays = rng.normal(size=(2 if kind is LinearRecurrence else 1, *shape)).astype(dtype)
    op = kind(axis, reverse)
    rtol = 1e-6 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(apply(op, *arrays), op.reference(*arrays), rtol=rtol)


def test_a_product_without_the_element_itself(rng):
    x = rng.normal(size=(6, 21)).astype("float32")
    for op in (CumProd(0, False, True), CumProd(1, True, True)):
        np.testing.assert_allclose(apply(op, x), op.reference(x), rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_extremes_keep_nan_and_begin_with_infinities(axis):
    x = np.full((20, 20), -np.inf, "float32")
    x[3, 4], x[9, 9] = np.nan, 2
    for op in (CumMax(axis), CumMin(axis, True)):
        np.testing.assert_array_equal(apply(op, x), op.reference(x))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize(("shape", "axis"), [*SHAPES, ((70_001,), 0)], ids=str)
def test_gaps_have_the_last_number(rng, shape, axis, reverse, dtype):
    x = rng.normal(size=shape)
    x[rng.random(shape) < 0.8] = np.nan
    x = x.astype(numpy_dtype(dtype))
    op = ForwardFill(axis, reverse)
    (found,) = launched(KERNEL, call_of(op, [x], op.infer(TensorType(dtype, shape))), [x])
    np.testing.assert_array_equal(found.astype("float64"), op.reference(x).astype("float64"))


@pytest.mark.parametrize("axis", [0, 1])
def test_bits_do_not_depend_on_the_number_of_threads(rng, axis):
    x = rng.normal(size=(257, 301)).astype("float32")
    found = set()
    for count in (1, 2, 3):
        with config.change_flags(**{"openmp.threads": count}):
            found.add(apply(CumSum(axis), x).tobytes())
    assert len(found) == 1


def test_float32_is_added_up_in_float64():
    x = np.array([1e8, 1, -1e8, 1], "float32")
    np.testing.assert_array_equal(apply(CumSum(0), x), np.float32([1e8, 1e8 + 1, 1, 2]))


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "bool", "float16", "bfloat16"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", [CumSum, CumProd, CumMax, CumMin], ids=lambda k: k.__name__)
def test_other_dtypes(rng, kind, axis, dtype):
    x = rng.integers(0, 3, (21, 34)).astype(numpy_dtype(dtype))
    op = kind(axis, True)
    out = op.infer(TensorType(dtype, x.shape))
    (found,) = launched(KERNEL, call_of(op, [x], out), [x])
    np.testing.assert_array_equal(found, op.reference(x))


def test_recurrences_of_complex_numbers_are_refused(rng):
    x = rng.normal(size=(3, 4)).astype("complex64")
    assert "no code" in KERNEL.refuses(call_of(LinearRecurrence(0), [x, x]))


def test_a_function_runs_it(rng):
    x = T.fmatrix("x")
    f = symdnn.function([x], T.cummax(x, axis=0), mode=symdnn.Mode(target="cpu"))
    data = rng.normal(size=(40, 40)).astype("float32")
    np.testing.assert_array_equal(f(data), np.maximum.accumulate(data))
    assert "llvm.nest" in str(f.lowering_report())
