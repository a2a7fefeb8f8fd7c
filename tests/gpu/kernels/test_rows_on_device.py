"""Norms of rows on a GPU, against the references: one kernel, of the same bits each time."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.graph.type import numpy_dtype
from symdnn.ops.nn.batchnorm import LayerNorm, LayerNormGrad
from symdnn.ops.nn.normalization import layer_norm
from tests.gpu.kernels.test_kernels_on_device import launched
from tests.gpu.recorder import generated_kernels
from tests.gpu.table import concrete

pytestmark = pytest.mark.gpu

TOLERANCE = {"float32": 3e-5, "float64": 1e-12, "bfloat16": 2e-2, "float16": 4e-3}
SHAPES = [
    (100, 1), (33, 7), (300, 768), (129, 769), (70, 5000), (40, 16384), (70, 20000), (70, 40000),
]  # fmt: skip


def close(got, want, dtype):
    scale = max(1.0, float(np.abs(np.float64(want)).max()))
    tol = TOLERANCE[dtype]
    np.testing.assert_allclose(np.float64(got), np.float64(want), rtol=tol, atol=tol * scale)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layer_norm_and_its_gradient(cuda, rng, shape, dtype):
    wide = "float64" if dtype == "float64" else "float32"
    x, dy = ((rng.standard_normal(shape) + 3).astype(numpy_dtype(dtype)) for _ in range(2))
    gamma, beta = (rng.standard_normal((1, shape[1])).astype(wide) for _ in range(2))
    op = LayerNorm((1,), 1e-5)
    _, mean, invstd = op.compute(*map(np.float64, (x, gamma, beta)))
    given = [x, dy, gamma, mean.astype(wide), invstd.astype(wide)]
    for one, arrays in ((op, [x, gamma, beta]), (LayerNormGrad((1,), 1e-5), given)):
        call = concrete(one, arrays)
        (kernel, *_) = generated_kernels(call)
        found, error = launched(cuda, kernel, call, arrays)
        assert error[0] == 0
        for a, b in zip(found, one.compute(*map(np.float64, arrays)), strict=True):
            close(a, b, dtype)
        again, _ = launched(cuda, kernel, call, arrays)
        assert [v.tobytes() for v in again] == [v.tobytes() for v in found]


@pytest.mark.parametrize("length", [64, 769, 4096, 20000])
def test_a_residual_block_forward_and_backward(cuda, rng, length):
    def outputs(x, y, dy, gamma, beta):
        total = x + T.cast(y, x.type.dtype)
        norm = layer_norm(total, gamma, beta)
        scale = T.sqrt(T.mean(total * total, axis=-1, keepdims=True) + 1e-6)
        rms = total / scale * gamma
        given = symdnn.grad(None, [x, gamma, beta], known_grads={norm: dy, rms: dy})
        return [total, norm, rms, given[0] + dy, *given[1:]]

    shape = (70, length)
    dtypes = ["float32", "bfloat16", "float32", "float32", "float32"]
    arrays = [
        rng.standard_normal(s).astype(numpy_dtype(d))
        for s, d in zip([shape] * 3 + [shape[1:]] * 2, dtypes)
    ]
    found = []
    for target, kinds in (("cuda", dtypes), ("cpu", ["float64"] * 5)):
        given = [T.TensorType(k, (None, length)[-a.ndim :])() for k, a in zip(kinds, arrays)]
        f = symdnn.function(given, outputs(*given), mode=symdnn.Mode(target=target))
        found.append(f(*(a.astype(numpy_dtype(k)) for a, k in zip(arrays, kinds))))
    for a, b in zip(*found, strict=True):
        close(a, b, "float32")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("length", [64, 1000, 5001, 40000])
def test_losses_of_a_softmax_and_their_gradients(cuda, rng, length, dtype):
    """Of a policy's entropy and values, and of a teacher."""

    def outputs(z, t):
        p, logs = T.softmax(z, axis=1), T.log_softmax(z, axis=1)
        teacher = T.log_softmax(t, axis=1)
        policy = (p * (0.2 * logs - t)).sum(axis=1).mean()
        distilled = (T.exp(teacher) * (teacher - logs)).sum(axis=1).mean()
        return [policy, symdnn.grad(policy, z), distilled, symdnn.grad(distilled, z)]

    a, b = (rng.standard_normal((70, length)).astype(numpy_dtype(dtype)) for _ in range(2))
    found = []
    for target, kind in (("cuda", dtype), ("cpu", "float64")):
        z, t = (T.TensorType(kind, (None, length))(n) for n in "zt")
        f = symdnn.function([z, t], outputs(z, t), mode=symdnn.Mode(target=target))
        given = [v.astype(numpy_dtype(kind)) for v in (a, b)]
        found.append(f(*given))
        if target == "cuda":
            assert [v.tobytes() for v in f(*given)] == [v.tobytes() for v in found[0]]
    for got, want in zip(*found, strict=True):
        scale = float(np.abs(want).max())
        close(np.float64(got) / scale, want / scale, dtype)
