"""Statistics of data with infinities and NaNs.

NumPy's quantiles make NaN of an infinity beside a share of 0, so most values stand here.
"""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T

INF, NAN = np.inf, np.nan

#: Data, q, method, quantile and nanquantile.
QUANTILES = [
    ([-INF, -INF, 1.0], 0.25, "linear", -INF, -INF),
    ([-INF, 2.0, 3.0], 0.0, "linear", -INF, -INF),
    ([-INF, 2.0, 3.0], 0.25, "linear", -INF, -INF),
    ([-INF, 2.0, 3.0], 0.5, "linear", 2.0, 2.0),
    ([-INF, 2.0, 3.0], 0.25, "higher", 2.0, 2.0),
    ([1.0, 2.0, INF], 0.75, "lower", 2.0, 2.0),
    ([1.0, 2.0, INF], 0.75, "linear", INF, INF),
    ([-INF, INF], 0.5, "linear", NAN, NAN),
    ([-INF, INF], 0.4, "nearest", -INF, -INF),
    ([-INF, 1.0, NAN, -2.0], 0.5, "linear", NAN, -2.0),
    ([-INF, 1.0, NAN, -2.0], 0.25, "hazen", NAN, -INF),
    ([-1e308, 1e308], 0.75, "linear", 5e307, 5e307),
]


@pytest.mark.parametrize(("data", "q", "method", "wanted", "without"), QUANTILES)
def test_quantiles_beside_infinities(data, q, method, wanted, without):
    x = T.dvector("x")
    found = [f(x, q, axis=0, method=method) for f in (T.quantile, T.nanquantile)]
    np.testing.assert_allclose(symdnn.function([x], found)(data), [wanted, without], rtol=1e-15)


@pytest.mark.parametrize("method", ["linear", "hazen", "inverted_cdf", "nearest", "midpoint"])
def test_nanquantile_by_all_methods(method, rng):
    data = np.where(rng.random((4, 7)) < 0.3, NAN, rng.normal(size=(4, 7)))
    data[:, 0] = 1
    x = T.dmatrix("x")
    found = symdnn.function([x], T.nanquantile(x, [0.1, 0.6], axis=1, method=method))(data)
    np.testing.assert_allclose(found, np.nanquantile(data, [0.1, 0.6], axis=1, method=method))


@pytest.mark.parametrize("name", ["nanvar", "nanstd"])
def test_deviations_from_an_infinite_mean_are_nan(name):
    data = [[1.0, INF, NAN], [1.0, 2.0, NAN], [-INF, INF, 0.0], [NAN, NAN, NAN]]
    x = T.dmatrix("x")
    found = symdnn.function([x], getattr(T, name)(x, axis=1))(data)
    assert np.isnan(found).tolist() == [True, False, True, True]


def test_pytorchs_median_of_a_nan_is_nan():
    x = T.dmatrix("x")
    data = np.array([[NAN, 3.0, 1.0, 2.0], [4.0, 3.0, 1.0, 2.0], [5.0, 5.0, -INF, 5.0]])
    values, indices = symdnn.function([x], list(x.median(dim=1)))(data)
    np.testing.assert_array_equal(values, [NAN, 2.0, 5.0])
    np.testing.assert_array_equal(np.take_along_axis(data, indices[:, None], 1)[:, 0], values)
