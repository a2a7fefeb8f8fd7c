"""Pooling by kernels of our own: their text on a CPU, against the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from symdnn.config import config
from symdnn.gpu.binding.nvrtc import compile_cubin
from symdnn.gpu.cudnn.pool import PoolKernel as CudnnPool
from symdnn.gpu.kernels.pool import PoolGradKernel, PoolKernel
from symdnn.graph.kernel import Call
from symdnn.graph.origin import NO_HINTS
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.vendor import gpudnn as G
from tests.gpu import emulator
from tests.gpu.fake_cudnn import call_of
from tests.gpu.recorder import CAPABILITIES

POOL, GRAD = PoolKernel(), PoolGradKernel()
MODES = ["max", "average_inc_pad", "average_exc_pad"]
WINDOWS = [
    ((12, 8), (3, 3), (2, 2), (1, 1)),
    ((8, 16), (2, 2), (2, 2), (0, 0)),
    ((7, 6), (3, 2), (2, 1), (1, 0)),
    ((5, 5), (2, 2), (3, 2), (0, 1)),  # elements that are in no window
    ((4, 5, 6), (2, 3, 2), (1, 2, 2), (1, 1, 0)),
    ((9, 24), (3, 3), (1, 1), (1, 1)),
    ((8, 32), (5, 3), (1, 4), (2, 1)),
]
#: Without ``ignore_border``, windows that the border cuts off, as a whole row or column of them.
CUT = [
    ((7, 5), (2, 2), (2, 2)),
    ((8, 16), (3, 3), (2, 2)),
    ((2, 9), (4, 3), (4, 4)),  # one window, larger than the image; gaps between windows
    ((3, 5, 7), (2, 2, 2), (2, 1, 2)),
    ((6, 8), (2, 2), (2, 2)),  # none is cut
]
needs_gpp = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")


def dense(array):
    return emulator.device_copy(array)[1]


def grad_call(op, dtype, shape, pooled):
    """The gradient's call: of (x, y, dy) for a maximum, of (dy, sizes) for a mean."""
    if op.is_max:
        return call_of(op, (dtype, shape), (dtype, pooled), (dtype, pooled))
    sizes = [TensorType("int64", ())] * len(op.ws)
    return Call(op, (TensorType(dtype, pooled), *sizes), (TensorType(dtype, shape),), NO_HINTS)


def pair(mode, layout, window, channels=8, whole=True):
    sizes, ws, stride, pad = window
    words = {"ws": ws, "stride": stride, "pad": pad, "layout": layout, "ignore_border": whole}
    shape = (2, 3, *sizes) if layout == "NCHW" else (2, *sizes, channels)
    static = () if mode == "max" else tuple(sizes)
    return G.GpuDnnPool(mode, **words), G.GpuDnnPoolGrad(mode, **words, static=static), shape


@needs_gpp
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_pooling_and_its_gradient(dtype, window, layout, mode):
    check(dtype, mode, window[0], pair(mode, layout, window))


@needs_gpp
@pytest.mark.parametrize("mode", [*MODES, "sum"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("window", CUT, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_windows_that_the_border_cuts_off(dtype, window, layout, mode):
    around = (0,) * len(window[1])
    check(dtype, mode, window[0], pair(mode, layout, (*window, around), whole=False))


def check(dtype, mode, sizes, ops):
    rng = np.random.default_rng(7)
    op, gradient, shape = ops
    x = rng.integers(-2, 3, shape).astype(numpy_dtype(dtype))  # with many ties
    if mode == "max":
        x.reshape(-1)[::29] = np.nan
    tol = 1e-2 if dtype == "bfloat16" else 1e-6
    (y,) = op.compute(x)
    (got,), _ = emulator.run(POOL, call_of(op, (dtype, shape)), [dense(x)])
    np.testing.assert_allclose(np.float64(got), np.float64(y), rtol=tol, atol=tol)
    dy = rng.integers(-3, 4, y.shape).astype(y.dtype)
    arrays = [x, y, dy] if mode == "max" else [dy, *map(np.asarray, sizes)]
    given = [dense(a) if a.ndim else a for a in arrays]
    (got,), _ = emulator.run(GRAD, grad_call(gradient, dtype, shape, y.shape), given)
    (want,) = gradient.compute(*arrays)
    np.testing.assert_allclose(np.float64(got), np.float64(want), rtol=tol, atol=2 * tol)


def test_the_flag_and_large_windows():
    op, _, shape = pair("max", "NCHW", WINDOWS[0])
    call = call_of(op, ("float32", shape))
    assert POOL.refuses(call) is None
    with config.change_flags(**{"gpu.prefer": "cudnn"}):
        assert POOL.refuses(call) == "gpu.prefer=cudnn"
    op, _, shape = pair("max", "NCHW", ((20, 20), (9, 9), (1, 1), (0, 0)))
    assert "window" in (POOL.refuses(call_of(op, ("float32", shape))) or "")


@pytest.mark.parametrize(("sizes", "cut"), [((7, 6), True), ((8, 6), False)])
def test_cudnn_is_left_out_where_it_would_drop_windows(sizes, cut):
    call = call_of(pair("max", "NCHW", (sizes, (2, 2), (2, 2), (0, 0)), whole=False)[0],
                   ("float32", (2, 3, *sizes)))  # fmt: skip
    assert ("border cuts off" in (CudnnPool().refuses(call) or "")) == cut
    with config.change_flags(**{"gpu.prefer": "cudnn"}):
        assert POOL.refuses(call) == (None if cut else "gpu.prefer=cudnn")
    assert "sums" in (CudnnPool().refuses(call_of(replace(call.op, mode="sum"),
                                                  ("float32", (2, 3, *sizes)))) or "")  # fmt: skip


def test_nothing_to_pool():
    op, _, _ = pair("max", "NCHW", WINDOWS[0])
    call = call_of(op, ("float32", (0, 3, 12, 8)))
    assert POOL.sources(call) == []


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_text_compiles(capability):
    for dtype in ("float32", "bfloat16"):
        for layout in ("NCHW", "NHWC"):
            for mode in MODES[::2]:
                op, gradient, shape = pair(mode, layout, WINDOWS[0])
                pooled = tuple(op.compute(np.zeros(shape, numpy_dtype(dtype)))[0].shape)
                texts = POOL.sources(call_of(op, (dtype, shape)))
                host = () if mode == "max" else WINDOWS[0][0]
                texts += GRAD.sources(grad_call(gradient, dtype, shape, pooled), host)
                for text in texts:
                    assert compile_cubin(text, capability)
