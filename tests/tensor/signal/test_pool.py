"""Pooling whose windows, strides and pads are symbols, as Theano accepts them."""

import numpy as np
import pytest

import symdnn.tensor as T
from symdnn import function, grad
from symdnn.errors import AssertionFailed, ShapeMismatch

POOLS = [
    (mode, ignore, ws, stride, pad)
    for mode in ("max", "sum", "average_inc_pad", "average_exc_pad")
    for ignore in (True, False)
    for ws, stride, pad in (((2, 3), (2, 3), 0), ((3, 2), (1, 2), 0), ((2, 2), (3, 4), 0),
                            ((3, 3), (2, 2), 1), ((9, 2), (2, 2), 0))
    if ignore or not pad
]  # fmt: skip


@pytest.mark.parametrize(("mode", "ignore", "ws", "stride", "pad"), POOLS)
def test_pooling_by_symbols_is_pooling_by_numbers(mode, ignore, ws, stride, pad, rng):
    data = rng.normal(size=(2, 2, 7, 8))
    x, symbols = T.dtensor4(), T.lvectors(3)
    pads = (pad, pad)
    pool = T.signal.pool.pool_2d
    plain = pool(x, ws, ignore, stride, pads, mode)
    by_size = pool(x, symbols[0], ignore, symbols[1], symbols[2], mode)
    cost = (plain**2).sum(), (by_size**2).sum()
    want = function([x], [plain, grad(cost[0], x)])(data)
    got = function([x, *symbols], [by_size, grad(cost[1], x)])(data, ws, stride, pads)
    for a, b in zip(got, want):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_pooling_by_symbols_refuses_what_pooling_by_numbers_does():
    x, w, p = T.tensor4(), T.lscalar(), T.lscalar()
    f = function([x, w, p], T.signal.pool.pool_2d(x, w, True, None, p))
    data = np.ones((1, 1, 4, 4), np.float32)
    assert f(data, 2, 1).shape == (1, 1, 3, 3)
    for ws, pad in ((0, 0), (2, 2), (2, -1)):
        with pytest.raises((AssertionFailed, ShapeMismatch)):
            f(data, ws, pad)
    ints = T.ltensor4()
    g = function([ints, w], T.signal.pool.pool_2d(ints, w, False))
    assert g(np.full((1, 1, 3, 3), -5), 2).tolist() == [[[[-5, -5], [-5, -5]]]]
