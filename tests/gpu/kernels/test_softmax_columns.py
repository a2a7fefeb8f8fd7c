"""Softmax along columns that clusters keep in shared memory: its text on a CPU, in one block."""

from __future__ import annotations

import numpy as np
import pytest

from symdnn.gpu.binding.nvrtc import compile_cubin
from symdnn.gpu.codegen.launches import View
from symdnn.gpu.kernels import softmax as softmax_kernels
from symdnn.gpu.kernels import softmax_columns
from symdnn.graph.type import numpy_dtype
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from tests.gpu import emulator
from tests.gpu.table import concrete

KERNEL = softmax_kernels.LongAxisKernel()
TOLERANCE = {"float32": 3e-6, "float64": 1e-12, "bfloat16": 1e-2, "float16": 2e-3}
KINDS = [Softmax, LogSoftmax, SoftmaxGrad, LogSoftmaxGrad]
needs_gpp = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")


@pytest.fixture
def large(monkeypatch):
    """Limits as of a large device without clusters, and no lower bound of the work."""
    monkeypatch.setattr(softmax_columns, "most_shared_bytes", lambda: 224 << 10)
    monkeypatch.setattr(softmax_columns, "_MIN_BLOCKS", 1)


def dense(array):
    return emulator.device_copy(array)[1]


def arrays_of(op, shape, dtype):
    rng = np.random.default_rng(shape[-1])
    x, dy = ((2 * rng.standard_normal(shape)).astype(numpy_dtype(dtype)) for _ in range(2))
    if isinstance(op, Softmax | LogSoftmax):
        return [x]
    forward = Softmax if isinstance(op, SoftmaxGrad) else LogSoftmax
    return [forward(op.axis).compute(x)[0], dy]


@needs_gpp
@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("dtype", sorted(TOLERANCE))
@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_read_once(kind, dtype):
    """Columns in whole vectors, in single elements, in groups, of an operand that is turned."""
    length = 2100 if dtype == "float64" or kind in KINDS[2:] else 4500
    for shape, axis in (((length, 24), 0), ((length + 1, 9), 0), ((2, length, 5), 1)):
        op = kind(axis)
        arrays = arrays_of(op, shape, dtype)
        wanted = op.compute(*map(np.float64, arrays))[0]
        (got,), env = emulator.run(KERNEL, concrete(op, arrays), [dense(a) for a in arrays])
        assert env.launched == ["softmax_kept"]
        scale = TOLERANCE[dtype]
        np.testing.assert_allclose(np.float64(got), wanted, scale, scale)
    op = kind(1)
    turned = [a.T for a in arrays_of(kind(0), (length, 24), dtype)]
    out = dense(np.zeros_like(turned[0]).T).T
    given = [dense(a.T).T for a in turned]
    (got,), env = emulator.run(KERNEL, concrete(op, turned), given, [out])
    assert env.launched == ["softmax_kept"]
    wanted = op.compute(*map(np.float64, turned))[0]
    np.testing.assert_allclose(np.float64(got), wanted, TOLERANCE[dtype], TOLERANCE[dtype])


@needs_gpp
@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("kind", [Softmax, LogSoftmax])
def test_infinities_and_nan(kind):
    x = np.random.default_rng(0).standard_normal((4500, 9)).astype("float32")
    x[:, 0], x[3::7, 1], x[5, 2], x[9, 3] = -np.inf, -np.inf, np.inf, np.nan
    x[:, 4] = np.sort(40 * x[:, 4])  # one element after the other is the largest
    (got,), env = emulator.run(KERNEL, concrete(kind(0), [x]), [dense(x)])
    assert env.launched == ["softmax_kept"]
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(got, kind(0).compute(x)[0], 2e-6, 2e-6)


@pytest.mark.parametrize(
    ("shape", "dtype", "cluster", "line"),
    [
        ((9460, 7095), "float32", 8, 64), ((8192, 8192), "float32", 8, 64),
        ((9460, 7095), "bfloat16", 8, 64), ((9460, 7096), "bfloat16", 8, 64),
        ((5000, 8192), "float32", 8, 128), ((40_000, 1000), "float32", 8, 32),
        ((200_000, 1000), "float32", 0, 0), ((9460, 64), "float32", 0, 0),
    ],
)  # fmt: skip
def test_lines_are_as_wide_as_two_blocks_allow(shape, dtype, cluster, line, monkeypatch):
    monkeypatch.setattr(softmax_columns, "most_shared_bytes", lambda: 224 << 10)
    monkeypatch.setattr(softmax_columns, "most_cluster_blocks", lambda: 8)
    size = numpy_dtype(dtype).itemsize
    x, dy, y = (View(i, dtype, shape, (shape[1] * size, size)) for i in range(3))
    launches = softmax_columns.columns_kept(3, 0, [x, dy], y)
    assert len(launches) == (cluster > 0)
    for launch in launches:
        columns = shape[1] // (launch.grid[0] // cluster) * size
        assert line // 2 < columns <= line
        assert shape[0] * line <= cluster * launch.shared_bytes
        assert compile_cubin(launch.source, (9, 0))
        assert compile_cubin(launch.source, (8, 0)) if shape[1] == 7096 else True
