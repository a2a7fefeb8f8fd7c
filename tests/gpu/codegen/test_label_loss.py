"""The kernels of the softmax loss from logits, run on a CPU."""

from __future__ import annotations

import numpy as np
import pytest

from symdnn.errors import IndexOutOfRange
from symdnn.gpu.kernels.labels import LossGradKernel
from symdnn.gpu.kernels.reduce import ReductionKernel
from symdnn.graph.type import numpy_dtype
from symdnn.ops.array.reduce import LogSumExp
from symdnn.ops.lowered.label_loss import LabelLossGrad
from tests.gpu import emulator
from tests.gpu.table import assert_close, concrete
from tests.seeded import new_rng

pytestmark = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")


def drawn(shape, dtype, axis):
    rng = new_rng()
    x = (4 * rng.standard_normal(shape)).astype(numpy_dtype(dtype))
    wide = np.float64 if dtype == "float64" else np.float32
    total = np.asarray(LogSumExp((axis,)).compute(x.astype(wide))[0])
    d = rng.standard_normal(total.shape).astype(x.dtype)
    labels = rng.integers(0, shape[axis], total.shape).astype(np.int32)
    return [emulator.device_copy(a)[1] for a in (d, total, x, labels)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize(("shape", "axis"), [((7, 1000), 1), ((3, 21, 40), 1), ((33, 5), 0)])
def test_the_gradient(shape, axis, dtype):
    arrays = drawn(shape, dtype, axis)
    for out in {dtype, "bfloat16"}:
        op = LabelLossGrad(axis, out)
        (got,), env = emulator.run(LossGradKernel(), concrete(op, arrays), arrays)
        assert env.error[0] == 0
        assert_close(got, op.compute(*arrays)[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("shape", "axis"), [((7, 1000), 1), ((3, 21, 40), 1)])
def test_the_gradient_overwrites_the_logits(shape, axis, dtype):
    arrays = drawn(shape, dtype, axis)
    op = LabelLossGrad(axis, dtype)
    (wanted,), _ = emulator.run(LossGradKernel(), concrete(op, arrays), arrays)
    (got,), env = emulator.run(LossGradKernel(), concrete(op, arrays), arrays, [arrays[2]])
    assert got is arrays[2]
    assert env.launched[0] == "keep_labels"
    np.testing.assert_array_equal(got, wanted)


def test_a_label_that_is_no_class():
    arrays = drawn((4, 6), "float32", 1)
    call = concrete(LabelLossGrad(1, "float32"), arrays)
    arrays[3][2] = 6
    _, env = emulator.run(LossGradKernel(), call, arrays)
    assert env.error[2:] == [6, 6]
    with pytest.raises(IndexOutOfRange):
        call.op.compute(*arrays)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_log_sum_exp_of_infinities_and_nan(dtype):
    x = np.random.default_rng(3).standard_normal((9, 3000)).astype(dtype) * 30
    x[1, 7], x[2, 7] = np.inf, -np.inf
    x[3], x[4], x[5, 2999] = np.inf, -np.inf, np.nan
    x[6, :5] = np.nan, np.inf, -np.inf, np.inf, np.inf
    x[7, ::2] = -np.inf
    x = emulator.device_copy(x)[1]
    op = LogSumExp((1,))
    (got,), _ = emulator.run(ReductionKernel(), concrete(op, [x]), [x])
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(
            got, op.compute(x)[0], rtol=1e-5 if dtype == "float32" else 1e-13
        )
