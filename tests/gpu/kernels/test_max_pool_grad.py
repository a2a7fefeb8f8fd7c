"""The gradient of max pooling that is our own: its text on a CPU, against the reference."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from symdnn.gpu.binding.nvrtc import compile_cubin
from symdnn.gpu.cudnn.pool import MaxPoolGradKernel
from symdnn.graph.type import numpy_dtype
from symdnn.ops.vendor import gpudnn as G
from tests.gpu import emulator
from tests.gpu.fake_cudnn import call_of
from tests.gpu.recorder import CAPABILITIES

KERNEL = MaxPoolGradKernel()
DTYPES = ["float16", "bfloat16", "float32", "float64"]


def a_call(dtype, x, ws, stride, pad):
    op = G.GpuDnnPoolGrad("max", ws=ws, stride=stride, pad=pad)
    y = G.GpuDnnPool("max", ws=ws, stride=stride, pad=pad).shapes([], [x], {})[0]
    return call_of(op, (dtype, x), (dtype, y), (dtype, y))


def drawn(call, seed=0):
    """x with many ties and a NaN, its maxima, a cotangent of small integers."""
    op, rng = call.op, np.random.default_rng(seed)
    x = rng.integers(-2, 3, call.inputs[0].shape).astype(numpy_dtype(call.inputs[0].dtype))
    x.reshape(-1)[:: max(x.size // 3, 1)] = np.nan
    (y,) = G.GpuDnnPool("max", ws=op.ws, stride=op.stride, pad=op.pad).neutral().compute(x)
    dy = rng.integers(-3, 4, y.shape).astype(y.dtype)
    return [x, y, dy]


@pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("x", "ws", "stride", "pad"),
    [
        ((2, 3, 7, 6), (3, 2), (2, 1), (1, 0)),
        ((1, 2, 5, 5), (2, 2), (3, 2), (0, 1)),  # elements that are in no window
        ((2, 1, 4, 5, 6), (2, 3, 2), (1, 2, 2), (1, 1, 0)),
    ],
)
def test_every_tie_gets_the_gradient(dtype, x, ws, stride, pad):
    call = a_call(dtype, x, ws, stride, pad)
    arrays = drawn(call)
    (got,), _ = emulator.run(KERNEL, call, arrays)
    (want,) = call.op.compute(*arrays)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.astype(float), want.astype(float))


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_text_compiles(capability):
    for dtype, dims in itertools.product(DTYPES, (2, 3)):
        shape = (2, 3, *(4,) * dims)
        call = a_call(dtype, shape, (2,) * dims, (2,) * dims, (0,) * dims)
        for source in KERNEL.sources(call):
            assert compile_cubin(source, capability)
