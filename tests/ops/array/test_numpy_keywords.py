"""NumPy's keywords of reductions and quantiles, against NumPy."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import OptionError, ShapeMismatch, TypeMismatch
from tests.seeded import new_rng

#: Values of which some are equal, and a mask that leaves something in each row.
X = np.round(new_rng().normal(size=(4, 5)), 1)
WHERE = np.arange(20).reshape(4, 5) % 3 > 0
METHODS = [
    "linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf", "averaged_inverted_cdf",
    "interpolated_inverted_cdf", "hazen", "weibull", "median_unbiased", "normal_unbiased",
]  # fmt: skip


def same(of_t, of_numpy, *values):
    xs = [T.TensorType(v.dtype.name, (None,) * v.ndim)() for v in values]
    found, wanted = symdnn.function(xs, of_t(*xs))(*values), of_numpy(*values)
    assert found.shape == np.shape(wanted)
    assert found.dtype == np.asarray(wanted).dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "int64", "bool"])
@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "any", "all"])
def test_where_and_initial(name, axis, dtype):
    x = (X * 2).astype(dtype)
    options = {} if name in ("mean", "any", "all") else {"initial": 1}
    if dtype == "bool" and options:
        options = {"initial": True} if name in ("max", "min") else options
    more = {"axis": axis, "keepdims": True, **options}
    same(
        lambda x, m: getattr(T, name)(x, where=m, **more),
        lambda x, m: getattr(np, name)(x, where=m, **more), x, WHERE,
    )  # fmt: skip
    same(lambda x: getattr(x, name)(**more), lambda x: getattr(np, name)(x, **more), x)
    row = WHERE[1]
    same(
        lambda x, m: getattr(x, name)(where=m, **more),
        lambda x, m: getattr(np, name)(x, where=m, **more), x, row,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["sum", "prod", "max", "mean"])
def test_elements_left_out_get_no_gradient_even_nan(name):
    options = {"initial": -9.0} if name == "max" else {}
    x, v = T.dmatrix("x"), np.where(WHERE, X, np.nan)
    y = getattr(T, name)(x, axis=1, where=WHERE, **options).sum()
    g = symdnn.function([x], T.grad(y, x), on_unused_input="ignore")(v)
    assert np.isfinite(g).all()
    assert not g[~WHERE].any()
    if name == "mean":
        np.testing.assert_allclose(g, WHERE / WHERE.sum(1, keepdims=True), rtol=1e-12)


def test_wrong_masks_are_refused():
    x = T.dmatrix("x")
    with pytest.raises(OptionError, match="initial="):
        T.max(x, where=WHERE)
    with pytest.raises(TypeMismatch, match="bools"):
        T.sum(x, where=np.ones((4, 5)))


def test_keepdims_of_ptp_and_of_indices_without_nan():
    v = np.where(WHERE, X, np.nan)
    same(lambda x: T.ptp(x, 1, keepdims=True), lambda x: np.ptp(x, 1, keepdims=True), X)
    for name in ("nanargmax", "nanargmin"):
        same(
            lambda x, n=name: getattr(T, n)(x, 1, keepdims=True),
            lambda x, n=name: getattr(np, n)(x, 1, keepdims=True), v,
        )  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1, 4, 7])
def test_methods_of_quantiles(method, size):
    v, q = new_rng().normal(size=(3, size)), np.linspace(0, 1, 13)
    same(
        lambda x: T.quantile(x, q, axis=1, method=method),
        lambda x: np.quantile(x, q, axis=1, method=method), v,
    )  # fmt: skip
    same(
        lambda x: T.percentile(x, 30, method=method),
        lambda x: np.percentile(x, 30, method=method), v,
    )  # fmt: skip


def test_an_unknown_method_is_refused():
    with pytest.raises(OptionError, match="averaged_inverted_cdf"):
        T.quantile(X, 0.5, method="closest_observation")


def test_logaddexp2_and_positive():
    a = np.array([0.0, 1.0, -np.inf, np.inf, 1000.0, 3.0, -np.inf, np.inf, -2.5, 1e300])
    b = np.array([0.0, 2.5, -np.inf, np.inf, 999.0, -np.inf, 2.0, -np.inf, 60.0, 1e300])
    same(T.logaddexp2, np.logaddexp2, a, b)
    same(T.positive, np.positive, a)
    x, y = T.dvector("x"), T.dvector("y")
    dx, dy = symdnn.function([x, y], T.grad(T.logaddexp2(x, y).sum(), [x, y]))(a[:2], b[:2])
    share = 1 / (1 + 2.0 ** (b[:2] - a[:2]))
    np.testing.assert_allclose([dx, dy], [share, 1 - share], rtol=1e-12)


def test_negative_numbers_of_elements_are_refused():
    for wrong in (lambda: T.eye(-1), lambda: T.eye(2, -3), lambda: T.tri(-2)):
        with pytest.raises(ShapeMismatch, match="at least 0"):
            wrong()
    with pytest.raises(ShapeMismatch, match="linspace: num: wanted at least 0 of them, got -1"):
        T.linspace(0, 1, -1)
    assert T.eye(0).eval().shape == (0, 0)
    assert T.linspace(0, 1, 0).eval().shape == (0,)


def test_torch_s_words_of_quantiles():
    x = np.arange(12, dtype="float32").reshape(3, 4)
    lower = T.quantile(x, 0.3, dim=1, keepdim=True, interpolation="lower").eval()
    np.testing.assert_array_equal(lower, np.quantile(x, 0.3, 1, keepdims=True, method="lower"))
