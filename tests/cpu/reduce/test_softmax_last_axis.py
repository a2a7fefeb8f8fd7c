"""Compiled softmax, cross-entropy and their gradients against the references in float64."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.reduce.softmax import LastAxisKernel
from symdnn.errors import IndexOutOfRange
from symdnn.graph.kernel import Call
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.array.reduce import LogSumExp
from symdnn.ops.nn.crossentropy import SoftmaxCrossentropy, SoftmaxCrossentropyGrad
from symdnn.ops.nn.softmax import (
    LogSoftmax,
    LogSoftmaxGrad,
    LogSoftmaxGradOfLogits,
    Softmax,
    SoftmaxGrad,
)
from tests.cpu.harness import call_of, compiled, launched
from tests.seeded import new_rng

pytestmark = compiled
SHAPES = [(1, 1), (5, 7), (3, 64), (3, 65), (1, 3000), (2, 3, 130), (700, 10), (9,)]


def apply(op, *arrays, dtype="float32"):
    """(The kernel's results, the reference's)"""
    wide = [a.astype("float64") if a.dtype == dtype else a for a in arrays]
    with np.errstate(all="ignore"):
        wanted = op.reference(*wide)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    results = [TensorType(np.dtype(dtype).name, w.shape) for w in wanted]
    return launched(LastAxisKernel(), call_of(op, arrays, *results), arrays), wanted


def check(op, *arrays):
    summed = max((a.shape[-1] for a in arrays if a.ndim), default=1)  # whose rounding adds up
    for got, want in zip(*apply(op, *arrays)):
        np.testing.assert_allclose(got, want, rtol=5e-6, atol=5e-6 * max(1, summed**0.5 / 10))


def every_op(axis, x, dy, labels):
    """(op, *operands) for all ops along an axis."""
    score = LogSoftmax(axis).reference(x)
    return (
        (Softmax(axis), x), (LogSoftmax(axis), x), (LogSumExp((axis,), False), x),
        (SoftmaxGrad(axis), Softmax(axis).reference(x), dy), (LogSoftmaxGrad(axis), score, dy),
        (LogSoftmaxGradOfLogits(axis), x, dy), (SoftmaxCrossentropy(axis), x, labels),
        (SoftmaxCrossentropyGrad(axis), dy[..., 0].copy(), score, labels),
    )  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_forward_and_backward(shape):
    rng, axis = new_rng(), len(shape) - 1
    x, dy = (rng.normal(size=shape).astype("float32") * 4 for _ in range(2))
    for operand in (x, np.ascontiguousarray(x.T).T, np.repeat(x, 2, axis)[..., ::2]):
        check(Softmax(axis), operand)
        check(LogSoftmax(axis), operand)
        check(LogSumExp((axis,), False), operand)
    check(SoftmaxGrad(axis), Softmax(axis).reference(x), dy)
    check(LogSoftmaxGrad(axis), LogSoftmax(axis).reference(x), dy)
    check(LogSoftmaxGradOfLogits(axis), x, dy)


@pytest.mark.parametrize("label", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_crossentropy_of_labels(shape, label):
    rng, axis = new_rng(), len(shape) - 1
    x = rng.normal(size=shape).astype("float32") * 4
    labels = rng.integers(0, min(shape[-1], 128), shape[:-1]).astype(label)
    check(SoftmaxCrossentropy(axis), x, labels)
    dnll = rng.normal(size=shape[:-1]).astype("float32")
    check(SoftmaxCrossentropyGrad(axis), dnll, LogSoftmax(axis).reference(x), labels)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_numbers_of_16_bits_are_rounded_once(shape, dtype):
    narrow, rng, axis = numpy_dtype(dtype), new_rng(), len(shape) - 1
    x, dy = ((rng.normal(size=shape) * 4).astype(narrow) for _ in range(2))
    labels = rng.integers(0, shape[-1], shape[:-1])
    for op, *arrays in every_op(axis, x, dy, labels):
        half = 2.0**-8 if dtype == "bfloat16" else 2.0**-11
        for got, want in zip(*apply(op, *arrays, dtype=narrow)):
            assert got.dtype == narrow
            np.testing.assert_allclose(got.astype("float64"), want, rtol=1.01 * half, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_float64_is_computed_in_float64(shape):
    rng, axis = new_rng(), len(shape) - 1
    x, dy = (rng.normal(size=shape) * 4 for _ in range(2))
    labels = rng.integers(0, shape[-1], shape[:-1])
    for op, *arrays in every_op(axis, x, dy, labels):
        for got, want in zip(*apply(op, *arrays, dtype="float64")):
            assert got.dtype == "float64"
            np.testing.assert_allclose(got, want, rtol=2e-14, atol=1e-13)


def test_extremes_come_out_as_the_reference_has_them():
    x = np.zeros((6, 70), "float32")
    x[0, 3], x[1, 5], x[2, 60], x[3] = 3e38, -np.inf, np.inf, -np.inf
    x[4, 69], x[5] = np.nan, -1e4
    for op, *more in (
        (Softmax(1),),
        (LogSoftmax(1),),
        (LogSoftmaxGradOfLogits(1), np.ones_like(x)),
    ):
        (got,), (wanted,) = apply(op, x, *more)
        np.testing.assert_allclose(got, wanted.astype("float32"), rtol=1e-6)


@pytest.mark.parametrize("rows", [4, 100])
@pytest.mark.parametrize("bad", [-1, 10, 2**40])
def test_a_label_out_of_range_is_refused_and_the_next_call_is_not(bad, rows):
    x, t = T.fmatrix("x"), T.lvector("t")
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(x), t)
    f = symdnn.function([x, t], [loss, T.grad(loss.sum(), x)], mode=symdnn.Mode(target="cpu"))
    given, labels = np.ones((rows, 10), "float32"), np.resize([1, 2, 3, 9], rows)
    first = f(given, labels)
    assert f.lowering_report().kernels()["llvm.rows"] == 2
    with pytest.raises(IndexOutOfRange, match=f"label {bad} in row 2"):
        f(given, np.where(np.arange(rows) == 2, bad, labels))
    for a, b in zip(first, f(given, labels)):
        np.testing.assert_array_equal(a, b)


def test_a_gradient_takes_the_place_of_its_logits(rng):
    x, dy = (rng.normal(size=(40, 70)).astype("float32") for _ in range(2))
    op, given = LogSoftmaxGradOfLogits(1), x.copy()
    call = call_of(op, (x, dy), TensorType("float32", x.shape))
    LastAxisKernel().bind(call)([given, dy], [given])
    np.testing.assert_allclose(given, op.reference(x, dy), rtol=5e-6, atol=5e-6)


def test_bits_do_not_depend_on_threads():
    x = new_rng().normal(size=(37, 300)).astype("float32")
    found = []
    for count in (1, 2, 5):
        with config.change_flags(**{"openmp.threads": count}):
            found.append(apply(Softmax(1), x)[0][0])
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def test_other_axes_and_dtypes_are_refused():
    def refusal(dtype, axis):
        given = TensorType(dtype, (3, 4, 5))
        return LastAxisKernel().refuses(Call(Softmax(axis), (given,), (given,), NO_HINTS))

    assert "last axis" in refusal("float32", 1)
    assert "floats of one dtype" in refusal("complex64", 2)


@pytest.mark.parametrize("length", [3, 200])
def test_logsumexp_of_what_is_infinite(length):
    x = new_rng().normal(size=(5, length)).astype("float32") * 60
    x[0], x[1, 2], x[2, 0], x[3, 1] = -np.inf, np.inf, np.nan, -np.inf
    (found,), (wanted,) = apply(LogSumExp((1,), True), x)
    np.testing.assert_allclose(found, wanted, rtol=2e-6)
    assert np.isneginf(found[0])
    assert np.isposinf(found[1])
    assert np.isnan(found[2])
