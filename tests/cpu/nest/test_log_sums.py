"""log(sum(exp(x))) over several axes, by two folds, against the reference."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.cpu.nest.log_sums import LogSumExpKernel
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.array.reduce import LogSumExp
from tests.cpu.harness import call_of, compiled, launched

pytestmark = compiled

AXES = [(0, 1), (1, 2), (0, 2), (0, 1, 2), (1,)]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32"])
@pytest.mark.parametrize("axes", AXES, ids=str)
def test_it_agrees_with_the_reference(rng, axes, dtype, keepdims):
    for shape in ((5, 17, 50), (40, 3, 9), (2, 30, 333)):
        x = (rng.normal(size=shape) * 9).astype(numpy_dtype(dtype))
        op = LogSumExp(axes, keepdims)
        out = op.infer(TensorType(dtype, shape))
        rtol = {"float64": 1e-13, "bfloat16": 1e-2, "float16": 1e-3}.get(dtype, 1e-6)
        for given in (x, x[::-1], x.transpose(2, 1, 0).copy().transpose(2, 1, 0)):
            (got,) = launched(LogSumExpKernel(), call_of(op, [given], out), [given])
            want = op.reference(given)
            np.testing.assert_allclose(got.astype("float64"), want.astype("float64"), rtol, rtol)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("axes", AXES, ids=str)
def test_infinities_and_nan(axes):
    x = np.full((4, 4, 20), -np.inf, "float32")
    x[1], x[2, 1, 3], x[3, 2, 5] = 1e30, np.inf, np.nan
    op = LogSumExp(axes, False)
    (got,) = launched(LogSumExpKernel(), call_of(op, [x], op.infer(TensorType("float32", x.shape))),
                      [x])  # fmt: skip
    np.testing.assert_array_equal(got, op.reference(x))


def test_a_function_and_its_gradient_run_it(rng):
    data = rng.normal(size=(20, 30, 40)).astype("float32")
    x = T.ftensor3("x")
    y = T.logsumexp(x, axis=(0, 2))
    f = symdnn.function([x], [y, symdnn.grad(y.sum(), x)])
    value, slope = f(data)
    np.testing.assert_allclose(value, np.log(np.exp(data.astype("float64")).sum((0, 2))), 1e-6)
    np.testing.assert_allclose(slope.sum((0, 2)), 1, 1e-5)
    assert "llvm.nest" in str(f.lowering_report())
