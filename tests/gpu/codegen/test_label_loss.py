"""The kernels of the softmax loss from logits, run on a CPU."""

from __future__ import annotations

import numpy as np
import pytest

from symdnn.errors import IndexOutOfRange
from symdnn.gpu.kernels import labels as label_kernels
from symdnn.gpu.kernels.labels import LossGradKernel, LossKernel
from symdnn.gpu.kernels.reduce import ReductionKernel
from symdnn.graph.type import numpy_dtype
from symdnn.ops.array.reduce import LogSumExp
from symdnn.ops.lowered.label_loss import LabelLoss, LabelLossGrad
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


# -- the loss and its gradient in one pass --------------------------------------------------------

ROWS = {
    "short": (300, 5), "a_warp": (37, 21), "some_warps": (7, 1000), "odd": (3, 3001),
    "three": (3, 4, 129), "one_class": (4, 1), "long": (2, 20003),
}  # fmt: skip


def both(shape, dtype):
    d, _, x, labels = drawn(shape, dtype, len(shape) - 1)
    return [d, x, labels]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("shape", ROWS.values(), ids=ROWS)
def test_the_loss_and_its_gradient(shape, dtype):
    arrays = both(shape, dtype)
    for out in {dtype, "bfloat16"}:
        call = concrete(LabelLoss(len(shape) - 1, out), arrays)
        got, env = emulator.run(LossKernel(), call, arrays)
        assert env.error[0] == 0
        for a, b in zip(got, call.op.compute(*arrays), strict=True):
            assert_close(a, b)


def test_no_rows_of_no_classes():
    arrays = [np.zeros(0), np.zeros((0, 0)), np.zeros(0, np.int32)]
    call = concrete(LabelLoss(1, "float64"), arrays)
    got, env = emulator.run(LossKernel(), call, [emulator.device_copy(a)[1] for a in arrays])
    assert env.error[0] == 0
    for a, b in zip(got, call.op.compute(*arrays), strict=True):
        assert a.shape == b.shape


@pytest.mark.parametrize("shared", [8 << 10, 12 << 10, 96 << 10])
def test_rows_in_shared_memory_and_rows_that_are_read_twice(shared, monkeypatch):
    monkeypatch.setattr(label_kernels, "most_shared_bytes", lambda: shared)
    arrays = both((5, 3003), "bfloat16")
    call = concrete(LabelLoss(1, "bfloat16"), arrays)
    got, _ = emulator.run(LossKernel(), call, arrays)
    for a, b in zip(got, call.op.compute(*arrays), strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(7, 1003), (5, 6, 40)])
def test_the_gradient_takes_the_place_of_the_logits(shape, dtype):
    arrays = both(shape, dtype)
    call = concrete(LabelLoss(len(shape) - 1, dtype), arrays)
    wanted, _ = emulator.run(LossKernel(), call, arrays)
    loss = emulator.device_copy(np.zeros(shape[:-1], "float32"))[1]
    got, _ = emulator.run(LossKernel(), call, arrays, [loss, arrays[1]])
    assert got[1] is arrays[1]
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_one_cotangent_for_all_rows():
    _, x, labels = both((6, 70), "float32")
    d = emulator.device_copy(np.full((1,), 0.25, "float32"))[1]
    call = concrete(LabelLoss(1, "float32"), [d, x, labels])
    got, _ = emulator.run(LossKernel(), call, [d, x, labels])
    for a, b in zip(got, call.op.compute(d, x, labels), strict=True):
        assert_close(a, b)


def test_a_loss_of_a_label_that_is_no_class():
    arrays = both((4, 6), "float32")
    call = concrete(LabelLoss(1, "float32"), arrays)
    arrays[2][2] = 6
    (loss, _), env = emulator.run(LossKernel(), call, arrays)
    assert env.error[2:] == [6, 6]
    assert loss[2] == 0
    with pytest.raises(IndexOutOfRange):
        call.op.compute(*arrays)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_losses_of_infinities_and_nan(dtype):
    d, x, labels = both((7, 300), dtype)
    labels[:] = 9
    x[1, 7], x[2, 7] = np.inf, -np.inf
    x[3], x[4, 200] = -np.inf, np.nan
    x[5, ::2] = -np.inf
    call = concrete(LabelLoss(1, dtype), [d, x, labels])
    got, _ = emulator.run(LossKernel(), call, [d, x, labels])
    with np.errstate(all="ignore"):
        for a, b in zip(got, call.op.compute(d, x, labels), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


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
