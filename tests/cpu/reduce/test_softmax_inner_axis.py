"""Softmax, logsumexp, argmax along inner axes by compiled loops, against the references."""

import numpy as np
import pytest

from symdnn.config import config
from symdnn.cpu.reduce.softmax import InnerAxisKernel, NarrowAxisKernel
from symdnn.graph.kernel import Call
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.array.reduce import LogSumExp
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

SHAPES = [
    ((2, 5, 7), 1), ((9, 300), 0), ((3, 10, 16, 16), 1), ((4, 3, 513), 1), ((1, 4, 2, 2), 1),
    ((3, 400, 3), 1), ((5, 70, 1), 1), ((100, 2, 2, 2), 0), ((2, 3, 40, 9), 2),
]  # fmt: skip


def apply(op, *arrays):
    """The kernel's result, and float64's reference."""
    with np.errstate(all="ignore"):
        wanted = np.asarray(op.reference(*[a.astype("float64") for a in arrays]))
    call = call_of(op, arrays, TensorType(arrays[0].dtype.name, wanted.shape))
    kernels = [k for k in (InnerAxisKernel(), NarrowAxisKernel()) if k.refuses(call) is None]
    assert len(kernels) == 1
    return *launched(kernels[0], call, arrays), wanted


TOLERANCE = {"float32": 4e-6, "float64": 1e-13, "float16": 2e-2, "bfloat16": 2e-1}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize(
    "op", [Softmax, LogSoftmax, SoftmaxGrad, LogSoftmaxGrad, LogSoftmaxGradOfLogits]
)
def test_softmax_and_its_gradients(rng, op, shape, axis, dtype):
    x = (rng.normal(size=shape) * (20 if dtype in ("float32", "float64") else 2)).astype(
        numpy_dtype(dtype)
    )
    arrays = [x]
    if op in (SoftmaxGrad, LogSoftmaxGrad):
        first = Softmax if op is SoftmaxGrad else LogSoftmax
        arrays = [first(axis).reference(x), rng.normal(size=shape).astype(x.dtype)]
    if op is LogSoftmaxGradOfLogits:
        arrays.append(rng.normal(size=shape).astype(x.dtype))
    found, wanted = apply(op(axis), *(a.astype(x.dtype) for a in arrays))
    bound = TOLERANCE[dtype]
    np.testing.assert_allclose(found.astype("float64"), wanted, rtol=bound, atol=bound)


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_logsumexp_and_what_is_infinite(shape, axis):
    x = (new_rng().normal(size=shape) * 50).astype("float32")
    columns = np.moveaxis(x, axis, 0).reshape(shape[axis], -1)  # a view or a copy
    op = LogSumExp((axis,), False)
    np.testing.assert_allclose(*apply(op, x), rtol=2e-6, atol=2e-6)
    columns += 500  # where the largest and the logarithm cancel, no relative bound holds
    columns[:, 0], columns[0, 1], columns[0, 2] = -np.inf, np.inf, np.nan
    back = columns.reshape([shape[axis], *np.delete(shape, axis)])
    found, wanted = apply(op, np.ascontiguousarray(np.moveaxis(back, 0, axis)))
    np.testing.assert_allclose(found, wanted, rtol=2e-6)
    assert np.isneginf(found).any()
    assert np.isposinf(found).any()
    assert np.isnan(found).any()


def test_operands_may_lie_in_any_way_and_threads_change_no_bit():
    x = new_rng().normal(size=(40, 6, 33)).astype("float32").transpose(2, 1, 0)
    found = []
    for count in (1, 2, 5):
        with config.change_flags(**{"openmp.threads": count}):
            result, wanted = apply(Softmax(1), x)
            np.testing.assert_allclose(result, wanted, rtol=2e-6)
            found.append(result)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_what_it_does_not_compute_is_refused_with_the_reason():
    def refusal(op, shape, kernel=InnerAxisKernel):
        given = TensorType("float32", shape)
        return kernel().refuses(Call(op, (given,), (op.infer(given),), NO_HINTS))

    assert "not the last" in refusal(Softmax(2), (2, 3, 4))
    assert "no elements" in refusal(Softmax(1), (0, 3, 40))
    assert "no elements" in refusal(Softmax(1), (0, 3, 4), NarrowAxisKernel)
    assert "fewer than 9 columns" in refusal(Softmax(1), (2, 3, 2))
    assert "not the last" in refusal(Softmax(2), (2, 3, 4), NarrowAxisKernel)
    assert "9 columns or more" in refusal(Softmax(1), (2, 3, 9), NarrowAxisKernel)
