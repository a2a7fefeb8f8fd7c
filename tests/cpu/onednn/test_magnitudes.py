"""What an operand may have before a primitive runs that loses NaN."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from symdnn.cpu.onednn.magnitudes import bound, largest


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("size", [0, 1, 7, 40_000])
@pytest.mark.parametrize(
    "odd", [2.0**32, -(2.0**32), 2.0**33, -3e38, np.inf, -np.inf, np.nan, -np.nan]
)
def test_one_large_element_anywhere_is_found(dtype, size, odd):
    x = np.random.default_rng(0).normal(size=size).astype(dtype)
    if size:
        x[: size // 2] *= dtype(2.0**28)
    plain = float(np.abs(x.astype("f8")).max(initial=0))
    assert largest(x) == plain <= bound(x) <= 2.0**32
    for place in {0, size // 3, size - 1} if size else ():
        y = x.copy()
        y[place] = odd
        np.testing.assert_equal([bound(y), largest(y)], [abs(float(dtype(odd)))] * 2)


def test_elements_with_gaps_are_looked_at_by_numpy():
    x = np.ones((6, 8), "f")[:, ::2]
    assert bound(x) == 1
    x[3, 2] = np.nan
    assert np.isnan(bound(x))
