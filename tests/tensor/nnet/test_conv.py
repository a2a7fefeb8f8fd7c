"""Convolutions with filters for each position, and upsampling by fractions, by Theano's names."""

import numpy as np
import pytest

import symdnn.tensor as T
from symdnn import function, grad
from symdnn.errors import OptionError

UNSHARED = [
    dict(),
    dict(border_mode="half"),
    dict(border_mode="full", filter_flip=False),
    dict(border_mode=(1, 0), subsample=(2, 1)),
    dict(border_mode=((1, 2), (0, 1)), filter_dilation=(1, 2)),
    dict(num_groups=2),
    dict(num_groups=2, border_mode=1, subsample=(2, 2), filter_flip=False),
]


@pytest.mark.parametrize("options", UNSHARED)
def test_unshared_convolution(options, rng):
    data = rng.normal(size=(2, 4, 6, 7))
    g = options.get("num_groups", 1)
    x, w = T.dtensor4(), T.dtensor4()
    one = function([x, w], T.nnet.conv2d(x, w, filter_shape=(None, None, 3, 2), **options))
    _, _, rows, cols = one(data, np.zeros((6, 4 // g, 3, 2))).shape
    filters = rng.normal(size=(6, rows, cols, 4 // g, 3, 2))
    w6 = T.TensorType("float64", (None,) * 6)()
    y = T.nnet.conv2d(x, w6, unshared=True, **options)
    got = function([x, w6], y)(data, filters)
    for i, j in np.ndindex(rows, cols):  # each position is that of a shared convolution
        want = one(data, filters[:, i, j])[:, :, i, j]
        np.testing.assert_allclose(got[:, :, i, j], want, rtol=1e-10, atol=1e-12)
    weights = rng.normal(size=got.shape)
    dx, dw = function([x, w6], grad((y * weights).sum(), [x, w6]))(data, filters)
    dy = T.dtensor4()
    by_name = [
        T.nnet.abstract_conv.conv2d_grad_wrt_inputs(dy, w6, (None, None, 6, 7), unshared=True,
                                                    **options),
        T.nnet.abstract_conv.AbstractConv2d_gradWeights(unshared=True, **options)(x, dy, (3, 2)),
    ]  # fmt: skip
    for a, b in zip(function([x, w6, dy], by_name)(data, filters, weights), (dx, dw)):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    step = rng.normal(size=filters.shape)
    change = function([x, w6], (y * weights).sum())
    slope = (change(data, filters + 1e-3 * step) - change(data, filters - 1e-3 * step)) / 2e-3
    np.testing.assert_allclose((dw * step).sum(), slope, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose((dx * data).sum(), (got * weights).sum(), rtol=1e-8, atol=1e-9)


def test_unshared_causal_convolution(rng):
    data, filters = rng.normal(size=(2, 3, 5)), rng.normal(size=(4, 5, 3, 2))
    x, w = T.dtensor3(), T.dtensor4()
    y = T.nnet.causal_conv1d(x, w, (None, None, None, 2), unshared=True)
    got = function([x, w], y)(data, filters)
    past = np.pad(data, ((0, 0), (0, 0), (1, 0)))
    for t in range(5):
        want = np.einsum("nck,ock->no", past[:, :, t : t + 2][:, :, ::-1], filters[:, t])
        np.testing.assert_allclose(got[:, :, t], want)


RATIOS = [(3, 2), (2, 3), (4, 2), ((3, 2), (5, 4)), ((2, 1), (1, 2)), (1, 1)]


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("separate", [True, False])
def test_upsampling_by_fractions(ratio, separate, rng):
    data = rng.normal(size=(2, 3, 5, 4))
    x = T.dtensor4()
    up = T.nnet.abstract_conv.bilinear_upsampling
    got = function([x], up(x, frac_ratio=ratio, use_1D_kernel=separate))(data)
    pairs = ratio if isinstance(ratio[0], tuple) else (ratio, ratio)
    want = data
    for axis, (p, q) in enumerate(pairs, 2):
        p, q = p // np.gcd(p, q), q // np.gcd(p, q)
        n = data.shape[axis]
        at = (np.arange(n * p) - (p - 1) // 2) / p
        want = np.apply_along_axis(lambda v, at=at, n=n: np.interp(at, np.arange(n), v), axis, want)
        want = want[(slice(None),) * axis + (slice(None, None, q),)]
    np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("words", [{}, {"ratio": 2, "frac_ratio": (3, 2)}, {"ratio": 0},
                                   {"frac_ratio": 2}, {"frac_ratio": (3, 0)}])  # fmt: skip
def test_ratios_that_are_none(words):
    with pytest.raises(OptionError, match="frac_ratio"):
        T.nnet.abstract_conv.bilinear_upsampling(T.tensor4(), **words)
