"""Batch norm of planes kept in shared memory: the text on a CPU, and where it is chosen."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.gpu.binding.nvrtc import compile_cubin
from symdnn.gpu.codegen.launches import contiguous_view
from symdnn.gpu.norm import batchnorm as batchnorm_kernels
from symdnn.gpu.norm import planes as norm_planes_kernels
from symdnn.gpu.norm.planes import planes_gradient, planes_norm, planes_of
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.nn.batchnorm import BatchNormGrad, BatchNormTrain
from tests.gpu import emulator
from tests.gpu.table import concrete
from tests.seeded import sampled

NORM, GRAD = batchnorm_kernels.BatchNormKernel(), batchnorm_kernels.BatchNormGradKernel()
TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 2e-2, "float16": 4e-3}
#: Planes in several passes, planes beside each other, images that do not share out evenly.
SHAPES = [(2, 4, 48, 48), (5, 3, 8, 8), (9, 5, 6, 6), (2, 3, 3, 5, 8), (1, 2, 70), (4, 40, 6, 6)]
needs_gpp = pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")


def dense(array):
    return emulator.device_copy(array)[1]


def close(got, want, dtype):
    tol = TOLERANCE[dtype]
    np.testing.assert_allclose(np.float64(got), np.float64(want), rtol=tol, atol=tol)


def arrays_of(shape, dtype):
    rng = np.random.default_rng(shape[-1])
    own = tuple(n if i == 1 else 1 for i, n in enumerate(shape))
    wide = "float64" if dtype == "float64" else "float32"
    x, dy = (rng.standard_normal(shape).astype(numpy_dtype(dtype)) + 2 for _ in range(2))
    return x, dy, [rng.standard_normal(own).astype(wide) for _ in range(4)]


@needs_gpp
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_one_kernel_does_all(shape, dtype):
    axes = (0, *range(2, len(shape)))
    x, dy, (gamma, beta, mean, var) = arrays_of(shape, dtype)
    arrays = [x, gamma, beta, np.asarray(0.3, gamma.dtype), mean, var]
    op = BatchNormTrain(axes, 1e-5, True)
    got, env = emulator.run(NORM, concrete(op, arrays), [dense(a) for a in arrays])
    assert env.launched == ["norm_planes"]
    want = op.compute(*map(np.float64, arrays))
    for a, b in zip(got, want, strict=True):
        close(a, b, dtype)
    op = BatchNormGrad(axes, 1e-5)
    arrays = [x, dy, gamma, *(a.astype(gamma.dtype) for a in want[1:3])]
    got, env = emulator.run(GRAD, concrete(op, arrays), [dense(a) for a in arrays])
    assert env.launched == ["norm_planes"]
    for a, b in zip(got, op.compute(*map(np.float64, arrays)), strict=True):
        np.testing.assert_allclose(
            np.float64(a), b, rtol=TOLERANCE[dtype] * 10, atol=TOLERANCE[dtype] * x.size / 50
        )


def views(shape, dtype):
    own = tuple(n if i == 1 else 1 for i, n in enumerate(shape))
    wide = "float64" if dtype == "float64" else "float32"
    return [
        contiguous_view(i, TensorType(dtype if i < 3 else wide, shape if i < 3 else own))
        for i in range(8)
    ]


def both(shape, dtype):
    v, axes = views(shape, dtype), (0, *range(2, len(shape)))
    forward = planes_norm(v[0], v[3], v[4], axes, 1e-5, [v[2], v[5], v[6]], (), 0.0)
    return forward, planes_gradient(v[0], v[1], v[3], v[4], v[5], axes, [v[2], v[6], v[7]])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", sampled([56, 28, 14], every=3))
def test_clusters_hold_whole_channels(size, dtype, monkeypatch):
    monkeypatch.setattr(norm_planes_kernels, "most_cluster_blocks", lambda: 8)
    monkeypatch.setattr(norm_planes_kernels, "most_shared_bytes", lambda: 224 << 10)
    shape = (64, 256, size, size)
    for arrays, launches in zip((1, 2), both(shape, dtype)):
        (launch,) = launches
        planes = planes_of(views(shape, dtype)[0], (0, 2, 3), arrays, 16)
        channel = 64 * size * size * numpy_dtype(dtype).itemsize * arrays
        assert channel <= planes.nbytes * planes.cluster <= planes.cluster * (224 << 10)
        assert planes.per_block * planes.cluster >= 64
        assert launch.shared_bytes == planes.nbytes
        assert launch.grid == (256 * planes.cluster,)
        capability = (9, 0) if dtype == "float32" else (10, 0)
        assert compile_cubin(launch.source, capability)


def test_what_no_block_holds_is_left_to_two_kernels():
    assert both((64, 256, 56, 56), "float32") == (None, None)  # no clusters are known of
    assert both((3, 8, 1, 1), "float32") == (None, None)
    v = views((4, 8, 16, 16), "float32")
    assert planes_of(v[0], (0, 2, 3), 1, 16) is not None
    assert planes_of(v[0].transposed((0, 1, 3, 2)), (0, 2, 3), 1, 16) is None
    assert planes_of(v[0], (0, 1, 2), 1, 16) is None
    shared = contiguous_view(3, TensorType("float32", (1, 1, 1, 1)))
    outputs = [v[2], v[5], v[6]]
    assert planes_norm(v[0], shared, v[4], (0, 2, 3), 1e-5, outputs, (), 0.0) is None


@pytest.mark.gpu
@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(64, 8, 56, 56), (33, 40, 28, 28), (6, 5, 10, 10)])
def test_clusters_on_a_device(shape, dtype):
    x, dy, (gamma, beta, *_) = arrays_of(shape, dtype)
    dy -= dy.mean(dtype="float64").astype(dy.dtype)  # sums would depend on the means' last bits
    with config.change_flags(device="cuda"):
        vx, vdy = (T.tensor4(name, dtype=dtype) for name in ("x", "dy"))
        parameters = [symdnn.shared(gamma.ravel()), symdnn.shared(beta.ravel())]
        y, mean, invstd = T.nnet.bn.batch_normalization_train(vx, *parameters, "spatial", 1e-5)[:3]
        grads = T.grad(None, [vx, *parameters], known_grads={y: vdy})
        f = symdnn.function([vx, vdy], [y, mean, invstd, *grads])
    axes = (0, 2, 3)
    forward, backward = BatchNormTrain(axes, 1e-5), BatchNormGrad(axes, 1e-5)
    want = forward.compute(*map(np.float64, (x, gamma, beta)))
    want += backward.compute(*map(np.float64, (x, dy, gamma, *want[1:])))
    for _ in range(3):  # the second call captures, the third one replays
        for a, b in zip(f(x, dy), want, strict=True):
            scale = np.abs(b).max() * TOLERANCE[dtype]
            np.testing.assert_allclose(np.float64(a).ravel(), b.ravel(), rtol=0, atol=scale)
