"""Need 11: one convolution in all its forms, with both gradients, against NumPy's float64.

What cuDNN refuses runs by another kernel, and the report says which.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.ops.nn import conv_builders as B
from symdnn.ops.nn.conv import Conv
from tests.gpu import agreement
from tests.needs.on_each_device import device  # noqa: F401

SIZES = {1: (9,), 2: (8, 7), 3: (5, 6, 5)}
KERNELS = {1: (3,), 2: (3, 2), 3: (2, 3, 2)}
#: Before and after each dimension: none, as much on both sides, causal, asymmetric.
PADS = {"none": (0, 0), "both": (1, 1), "causal": (2, 0), "asymmetric": (0, 1)}
GRID = list(itertools.product([1, 2], [1, 2], [1, 2], PADS, [True, False]))
_DRAWN = dict(enumerate(GRID))


def by_loops(x, w, stride, dilation, groups, pads, flip):
    """The convolution as its definition says it, in float64."""
    n = x.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *[pads] * n])
    if flip:
        w = w[(slice(None), slice(None), *[slice(None, None, -1)] * n)]
    reach = [(k - 1) * dilation + 1 for k in w.shape[2:]]
    out = [(size - r) // stride + 1 for size, r in zip(x.shape[2:], reach)]
    y = np.zeros((x.shape[0], w.shape[0], *out))
    inner, outer = w.shape[1], w.shape[0] // groups
    for at in itertools.product(*map(range, out)):
        window = x[
            (
                slice(None),
                slice(None),
                *(slice(a * stride, a * stride + r, dilation) for a, r in zip(at, reach)),
            )
        ]
        for g in range(groups):
            part = window[:, g * inner : (g + 1) * inner].reshape(len(x), -1)
            rows = slice(g * outer, (g + 1) * outer)
            y[(slice(None), rows, *at)] = part @ w[rows].reshape(outer, -1).T
    return y


def convolved(ndim, stride, dilation, groups, pads, flip):
    return Conv(
        stride=(stride,) * ndim, padding=(pads,) * ndim, dilation=(dilation,) * ndim,
        groups=groups, flip=flip,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize("how", _DRAWN)
def test_forward_and_both_gradients(device, how, ndim, dtype):  # noqa: F811
    stride, dilation, groups, pad, flip = GRID[how]
    rng = np.random.default_rng(ndim)
    arrays = [rng.normal(size=(2, 4, *SIZES[ndim])), rng.normal(size=(6, 4 // groups,
              *KERNELS[ndim]))]  # fmt: skip
    op = convolved(ndim, stride, dilation, groups, PADS[pad], flip)
    agreement.assert_agree(lambda x, w: op(x, w), arrays, dtype)
    want = by_loops(*arrays, stride, dilation, groups, PADS[pad], flip)
    np.testing.assert_allclose(op.compute(*arrays)[0], want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_transposed(device, ndim, stride):  # noqa: F811
    rng = np.random.default_rng(ndim)
    sizes, kernel = SIZES[ndim], KERNELS[ndim]
    out = [(n - k) // stride + 1 for n, k in zip(sizes, kernel)]
    arrays = [rng.normal(size=(2, 6, *out)), rng.normal(size=(6, 4, *kernel))]
    build = getattr(B, f"conv{ndim}d_grad_wrt_inputs")

    def transposed(dy, w):
        return build(dy, w, (2, 4, *sizes), (6, 4, *kernel), subsample=(stride,) * ndim)

    agreement.assert_agree(transposed, arrays)


def test_what_cudnn_refuses_is_said():
    x = T.TensorType("float32", (None,) * 6)("x")
    w = symdnn.shared(np.zeros((2, 3, 1, 1, 1, 1), "float32"))
    f = symdnn.function([x], convolved(4, 1, 1, 1, (0, 0), False)(x, w),
                        mode=symdnn.Mode(target="cuda:sm_90"))  # fmt: skip
    assert "at most 3 dimensions, not 4" in str(f.lowering_report())
