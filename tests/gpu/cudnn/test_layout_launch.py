"""Channels last at launch: what cuDNN is told, and the kernel that reorders where none takes it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from symdnn.gpu import registry
from symdnn.gpu.cudnn.nchw_fallback import reordered
from symdnn.gpu.cudnn.pool import MaxPoolGradKernel
from symdnn.graph.kernel import Call, kernels_for
from symdnn.graph.origin import Hints
from symdnn.ops.vendor import gpudnn as G
from tests.gpu import emulator
from tests.gpu.fake_cudnn import F32, call_of, run

registry.load()

POOL = {"ws": (3, 2), "stride": (2, 1), "pad": (1, 0)}
LAST, ROW = (2, 7, 6, 3), (1, 1, 1, 3)


def strides(shape):
    """Elements between neighbours of (N, C, H, W) where (N, H, W, C) is dense."""
    _, h, w, c = shape
    return h * w * c, 1, w * c, c


def test_pooling(fake):
    call = call_of(G.GpuDnnPool("max", **POOL, layout="NHWC"), (F32, LAST))
    run(fake, call)
    _, _, _, xd, _, _, yd, _ = fake.only("cudnnPoolingForward")
    assert (xd.shape, xd.strides) == ((2, 3, 7, 6), strides(LAST))
    assert (yd.shape, yd.strides) == ((2, 3, 4, 5), strides((2, 4, 5, 3)))


def test_batch_normalisation(fake):
    op = G.GpuDnnBatchNorm("spatial", layout="NHWC")
    run(fake, call_of(op, (F32, LAST), (F32, ROW), (F32, ROW)))
    args = fake.only("cudnnBatchNormalizationForwardTraining")
    assert (args[4].shape, args[4].strides) == ((2, 3, 7, 6), strides(LAST))
    assert args[8].shape == (1, 3, 1, 1)


def max_grad(layout, hints=None):
    op = G.GpuDnnPoolGrad("max", **POOL, layout=layout)
    x, y = (F32, (2, 3, 7, 6)), (F32, (2, 3, 4, 5))
    if layout == "NHWC":
        x, y = (F32, LAST), (F32, (2, 4, 5, 3))
    return call_of(op, x, y, y, hints=hints or Hints())


def test_ties_are_settled_by_cudnn_only_where_it_is_asked_for(fake):
    refusals = {k.name: k.refuses(max_grad("NHWC")) for k in kernels_for(G.GpuDnnPoolGrad, "cuda")}
    assert "several maxima" in refusals["cudnn.pool_grad"]
    assert refusals["cudnn.reordered"] is None
    asked = max_grad("NHWC", Hints(backend="cudnn"))
    names = [k.name for k in kernels_for(G.GpuDnnPoolGrad, "cuda") if k.refuses(asked) is None]
    assert "cudnn.pool_grad" in names


KERNEL = reordered(MaxPoolGradKernel())
SETTLED = MaxPoolGradKernel()


def test_the_order_of_programs_needs_no_change():
    assert "not last" in KERNEL.refuses(max_grad("NCHW"))
    average = G.GpuDnnPoolGrad("average_inc_pad", **POOL, layout="NHWC", static=(7, 6))
    call = Call(average, max_grad("NHWC").inputs, max_grad("NHWC").outputs, Hints())
    assert KERNEL.refuses(call) == "it is for a maximum"


@pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")
@pytest.mark.parametrize("sizes", [LAST, (2, 5, 6, 1), (2, 4, 5, 6, 3)])
def test_reordering_around_a_kernel(sizes):
    rng = np.random.default_rng(0)
    dims = len(sizes) - 2
    window = {"ws": (2,) * dims, "stride": (1,) * dims, "pad": (0,) * dims}
    op = G.GpuDnnPoolGrad("max", **window, layout="NHWC")
    forward = G.GpuDnnPool("max", **window, layout="NHWC")
    x = rng.integers(-3, 4, sizes).astype("float32")
    (y,) = forward.compute(x)
    dy = rng.integers(-3, 4, y.shape).astype("float32")
    call = call_of(op, (F32, x.shape), (F32, y.shape), (F32, y.shape))
    (got,), env = emulator.run(KERNEL.settled(call), call, [x, y, dy])
    np.testing.assert_array_equal(got, op.compute(x, y, dy)[0])
    assert KERNEL.capturable(call)
    copies = env.launched.count("tiles") + env.launched.count("elementwise")
    assert copies == (0 if sizes[-1] == 1 else 4)


def test_the_kernel_that_runs_makes_its_own_choices(fake):
    class Choosing(MaxPoolGradKernel):
        def settled(self, call):
            assert call.op.layout == "NCHW"
            return SETTLED

    found = replace(KERNEL, kernels=(Choosing(),)).settled(max_grad("NHWC"))
    assert found.kernels == (SETTLED,)
    assert found.name == "cudnn.reordered"
