"""Kernels on rows with padding behind them, as plans give to GEMMs, run on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from symdnn.gpu.kernels.elementwise import ElementwiseKernel
from symdnn.gpu.kernels.labels import LossGradKernel, LossKernel
from symdnn.gpu.kernels.reduce import ReductionKernel
from symdnn.graph.type import numpy_dtype
from symdnn.ops.array.argreduce import ArgMax
from symdnn.ops.array.reduce import LogSumExp, Max, Sum
from symdnn.ops.elementwise.arithmetic import Neg
from symdnn.ops.elementwise.math import Tanh
from symdnn.ops.lowered.label_loss import LabelLoss, LabelLossGrad
from tests.gpu import emulator
from tests.gpu.table import assert_close, concrete

pytestmark = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")
SEED = 17


def padded(values: Any, filling: float = np.nan, line: int = 16) -> Any:
    """The values with rows at multiples of ``line`` bytes, and ``filling`` behind each."""
    rows, columns = values.shape
    step = -(-columns * values.itemsize // line) * line // values.itemsize
    whole = emulator.device_copy(np.full((rows, step), filling, values.dtype))[1]
    whole[:, :columns] = values
    return whole[:, :columns]


def drawn(rows: int, columns: int, dtype: str) -> Any:
    values = np.random.default_rng(SEED).standard_normal((rows, columns))
    return values.astype(numpy_dtype(dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("columns", [65, 127, 2003, 9001])
def test_reductions_leave_the_padding_out(columns: int, dtype: str) -> None:
    x = padded(drawn(5, columns, dtype))
    acc = "float64" if dtype == "float64" else "float32"
    ops = [Sum((1,), False, dtype, acc), Max((1,)), ArgMax((1,))]
    ops += [LogSumExp((1,))] if dtype != "bfloat16" else []
    for op in ops:
        (got,), _ = emulator.run(ReductionKernel(), concrete(op, [x]), [x])
        assert_close(got, op.compute(x)[0], rtol=2e-2 if dtype == "bfloat16" else 1e-5)


@pytest.mark.parametrize("line", [16, 128])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_elementwise_results_may_be_written_into_their_padding(dtype: str, line: int) -> None:
    for columns in (65, 71, 1003):
        x, y = padded(drawn(6, columns, dtype)), padded(drawn(6, columns, dtype), 0, line)
        wanted = Tanh().compute(np.array(x))[0]
        emulator.run(ElementwiseKernel(), concrete(Tanh(), [x]), [x], [y])
        assert_close(y, wanted, rtol=1e-2 if dtype == "bfloat16" else 1e-5)
        assert np.array_equal(x, padded(drawn(6, columns, dtype)))


@pytest.mark.parametrize("rows", [1, 6])
def test_the_gradient_of_a_loss_of_an_odd_number_of_words(rows: int) -> None:
    x = padded(drawn(rows, 1003, "bfloat16"), line=128)
    total = np.asarray(LogSumExp((1,)).compute(x.astype("float32"))[0])
    d, labels = np.ones_like(total), np.arange(rows, dtype=np.int32)
    arrays = [emulator.device_copy(d)[1], emulator.device_copy(total)[1], x, labels]
    call = concrete(LabelLossGrad(1, "bfloat16"), arrays)
    out = padded(np.zeros((rows, 1003), x.dtype), line=128)
    emulator.run(LossGradKernel(), call, arrays, [out])
    assert_close(out, call.op.compute(*arrays)[0], rtol=1e-2)
    arrays = [arrays[0], x, labels]
    call = concrete(LabelLoss(1, "bfloat16"), arrays)
    wanted, found = call.op.compute(*arrays)
    loss = emulator.device_copy(np.zeros_like(total))[1]
    emulator.run(LossKernel(), call, arrays, [loss, x])
    assert_close(loss, wanted)
    assert_close(x, found, rtol=1e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("columns", [1, 3, 16, 65])
def test_results_between_others_leave_these_alone(columns: int, dtype: str) -> None:
    x = np.arange(6 * columns).reshape(6, columns).astype(numpy_dtype(dtype))
    whole = emulator.device_copy(np.full((6, 3 * columns + 5), 7, x.dtype))[1]
    op = Neg()
    call = concrete(op, [x])
    launch = ElementwiseKernel().bind_beside(call).kernel
    for first in (0, columns, 2 * columns):
        whole[...] = 7
        emulator.run(launch, call, [x], [whole[:, first : first + columns]])
        wanted = np.full(whole.shape, 7, x.dtype)
        wanted[:, first : first + columns] = op.compute(x)[0]
        np.testing.assert_array_equal(whole, wanted)
