"""Allocs whose value has a size that only its array's type knows to be 1."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import SymdnnError
from symdnn.ops.core.shape import alloc, dimshuffle


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("pad", [False, True])
def test_a_dropped_dimension_of_an_alloc(rng, known, axis, pad):
    shape = [4, 5, 2]
    shape[axis] = 1
    static = tuple(1 if n == 1 and known else None for n in shape)
    v = T.TensorType("float64", static)("v")
    n = T.iscalars("abc")
    sizes = [1 if k == axis else s for k, s in enumerate(n)]
    kept = [k for k in range(3) if k != axis]
    y = dimshuffle(alloc(v, *sizes), ("x", *kept[::-1]) if pad else tuple(kept))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f = symdnn.function([v, *n], y, on_unused_input="ignore")
    value = rng.normal(size=shape)
    wanted = value.squeeze(axis)
    np.testing.assert_array_equal(f(value, *shape), wanted.T[None] if pad else wanted)
    if not known:
        with pytest.raises((SymdnnError, ValueError)):
            f(np.repeat(value, 3, axis), *shape)


@pytest.mark.parametrize("use", ["beside", "product", "after", "difference"])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_an_alloc_of_size_1_stays_known_to_be_1(rng, use, axes):
    """The value's sizes are unknown; the alloc says that they are 1, and so it broadcasts."""
    small, big = T.tensor("float32", (None, None)), T.tensor("float32", (None, None))
    spread = T.alloc(small, *(1 if a in axes else big.shape[a] for a in range(2)))
    out = {
        "beside": lambda: big + spread,
        "product": lambda: (spread * big) * big,
        "after": lambda: T.exp(T.alloc(spread, 3, *spread.shape)) * big,
        "difference": lambda: T.clip(big, spread, 1),
    }[use]()
    arrays = {
        small: rng.uniform(0, 1, [1 if a in axes else (2, 3)[a] for a in range(2)]),
        big: rng.uniform(0, 1, (2, 3)),
    }
    arrays = {v: a.astype("float32") for v, a in arrays.items()}
    f = symdnn.function(list(arrays), out)
    x, y = arrays.values()
    want = {
        "beside": lambda: y + x,
        "product": lambda: x * y * y,
        "after": lambda: np.exp(np.broadcast_to(x, (3, *x.shape))) * y,
        "difference": lambda: np.clip(y, x, 1),
    }[use]()
    np.testing.assert_allclose(f(x, y), want, rtol=1e-5)
