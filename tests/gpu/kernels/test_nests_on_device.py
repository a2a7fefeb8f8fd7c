"""Arg-reductions, scans and top-k of large arrays on a GPU, against the references."""

from __future__ import annotations

import numpy as np
import pytest

from symdnn.config import config
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor
from symdnn.ops.array.argreduce import ArgMax, ArgMin
from symdnn.ops.array.cumulative import CumMax, CumProd, CumSum, LinearRecurrence
from symdnn.ops.array.reduce import LogSumExp
from symdnn.ops.array.slices import FULL
from symdnn.ops.array.sort import ArgSort, Sort, TopK
from symdnn.ops.array.view import Copy
from symdnn.ops.elementwise.arithmetic import Add
from symdnn.ops.lowered.label_loss import LabelLoss, LabelLossGrad
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from symdnn.ops.vendor.gpudnn import GpuDnnReduction
from tests.gpu.kernels.test_kernels_on_device import launched
from tests.gpu.recorder import generated_kernels
from tests.gpu.table import assert_close, concrete

pytestmark = pytest.mark.gpu

DTYPES = ["float32", "bfloat16", "float64", "int8", "int64"]


def drawn(rng, shape, dtype):
    """Numbers with ties, NaN and infinities."""
    x = (rng.standard_normal(shape) * 9).astype(numpy_dtype(dtype))
    if TensorType(dtype).is_float:
        x.reshape(-1)[:: max(x.size // 3, 1)] = np.nan
        x.reshape(-1)[1 :: max(x.size // 5, 1)] = -np.inf
    return x


def agree(cuda, op, *arrays, rtol=None):
    """The generated kernel gives what the reference gives, the same bits each time."""
    call = concrete(op, list(arrays))
    (kernel, *_) = generated_kernels(call)
    found, error = launched(cuda, kernel, call, list(arrays))
    assert error[0] == 0
    with np.errstate(all="ignore"):
        wanted = op.compute(*arrays)
    for got, want in zip(found, wanted, strict=True):
        assert_close(got, want, rtol)
    again, _ = launched(cuda, kernel, call, list(arrays))
    assert [v.tobytes() for v in again] == [v.tobytes() for v in found]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((64, 50304), (1,)), ((5000, 520), (0,)), ((3, 1 << 20), (1,)), ((40, 300, 70), (0, 2))],
    ids=str,
)
def test_where_extremes_are(cuda, rng, shape, axes, dtype):
    x = drawn(rng, shape, dtype)
    agree(cuda, ArgMax(axes), x)
    agree(cuda, ArgMin(axes), x[::-1])


def test_an_extreme_with_its_index(cuda, rng):
    x = drawn(rng, (64, 5000), "float32")
    agree(cuda, GpuDnnReduction("maximum", (1,), "float32", "float32", True), x)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((500, 8192), 1), ((4096, 520), 0), ((2, 1 << 20), 1), ((100_000, 8), 0), ((70, 1001), 1),
     ((30_000, 10), 1), ((9, 3000, 33), 1)], ids=str,
)  # fmt: skip
def test_scans(cuda, rng, shape, axis, dtype, reverse):
    x = rng.integers(-1, 2, shape).astype(numpy_dtype(dtype))
    agree(cuda, CumMax(axis, reverse), drawn(rng, shape, dtype))
    agree(cuda, CumSum(axis, reverse), x if dtype != "bfloat16" else abs(x) % 2 / 256)
    agree(cuda, CumProd(axis, reverse, True), x | 1 if dtype.startswith("i") else x)
    if dtype in ("float32", "float64"):
        a, b = (rng.standard_normal((2, *shape)) / 4).astype(dtype)
        agree(cuda, LinearRecurrence(axis, reverse), a, b, rtol=1e-4)


@pytest.mark.parametrize("k", [1, 50, -50, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_top_k(cuda, rng, dtype, k):
    agree(cuda, TopK(1, "int64"), drawn(rng, (300, 20_000), dtype), np.int64(k))
    agree(cuda, TopK(1, "int32"), drawn(rng, (2, 1 << 19), dtype), np.int64(k))
    agree(cuda, TopK(0, "int64"), np.sort(drawn(rng, (5000, 7), dtype), 0), np.int64(k))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2048, 1024), (1001, 999), (17, 5000), (5000, 16)], ids=str)
def test_operands_across_each_other(cuda, rng, shape, dtype):
    x = drawn(rng, shape, dtype)
    agree(cuda, Copy(), x.T)
    agree(cuda, Add(), drawn(rng, shape[::-1], dtype), x.T)
    three = np.ascontiguousarray(np.broadcast_to(x[:40, :90], (3, *x[:40, :90].shape)))
    agree(cuda, Add(), three.transpose(1, 2, 0), three.transpose(1, 2, 0).copy())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("shape", [(300, 50304), (37, 50257), (3, 1 << 20)], ids=str)
def test_softmax_and_losses_of_long_rows(cuda, rng, shape, dtype):
    rtol = {"float32": 1e-4, "bfloat16": 2e-2, "float64": 1e-11}[dtype]
    x, dy = ((3 * rng.standard_normal(shape)).astype(numpy_dtype(dtype)) for _ in range(2))
    for forward, backward in ((Softmax(1), SoftmaxGrad(1)), (LogSoftmax(1), LogSoftmaxGrad(1))):
        agree(cuda, forward, x, rtol=rtol)
        agree(cuda, backward, *forward.compute(x), dy, rtol=rtol)
    wide = x.astype(np.float64 if dtype == "float64" else np.float32)
    agree(cuda, LogSumExp((1,)), wide, rtol=1e-5)
    total = np.asarray(LogSumExp((1,)).compute(wide)[0])
    labels = rng.integers(0, shape[1], shape[0])
    d = rng.standard_normal(shape[0]).astype(x.dtype)
    agree(cuda, LabelLossGrad(1, dtype), d, total, x, labels, rtol=rtol)
    agree(cuda, LabelLoss(1, dtype), d, x, labels, rtol=rtol)


@pytest.mark.parametrize("dtype", [*DTYPES, "uint16", "float16"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((64, 8192), 1), ((1 << 20,), 0), ((300_000, 3), 0), ((2000, 700), 1)],
    ids=str,
)  # fmt: skip
def test_sorts(cuda, rng, shape, axis, dtype):
    x = drawn(rng, shape, dtype) if dtype != "uint16" else rng.integers(0, 9999, shape, np.uint16)
    agree(cuda, ArgSort(axis), x)
    agree(cuda, Sort(axis), x)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("kinds", [1, 40, 20_000])
def test_rows_incremented(cuda, rng, dtype, kinds):
    x, y = (rng.integers(-2, 3, s).astype(numpy_dtype(dtype)) for s in ((20_000, 768), (3000, 768)))
    op = AdvancedIncSubtensor(("a", FULL))
    index = rng.integers(0, kinds, 3000)
    y[index == 0] = 0 if dtype == "bfloat16" else y[index == 0]  # sums that 16 bits hold
    agree(cuda, op, x, y, index)
    with config.change_flags(deterministic="more"):
        agree(cuda, op, x, y, index)


def test_far_numbers(cuda):
    n = (1 << 31) + 77
    x = np.zeros(n, np.int8)
    x[n - 3] = 4
    call = concrete(ArgMax((0,)), [x])
    (kernel, *_) = generated_kernels(call)
    assert launched(cuda, kernel, call, [x])[0][0] == n - 3
