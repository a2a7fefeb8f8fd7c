"""Allocs whose value has a size that only its array's type knows to be 1."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import SymdnnError
from symdnn.ops.shape import alloc, dimshuffle


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
