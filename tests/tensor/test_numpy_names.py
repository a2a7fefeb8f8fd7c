"""Names of NumPy and PyTorch beyond Theano's: values, dtypes and gradients, sizes unknown."""

import warnings

import numpy as np
import pytest
import scipy.special

import symdnn
import symdnn.tensor as T
from symdnn import function, grad
from symdnn.errors import AssertionFailed, AxisError, OptionError, SymbolicValueError, SymdnnError

MODES = [None, symdnn.Mode(optimizer=None)]


def draw(rng, *shape, nans=False):
    x = rng.normal(size=shape)
    if nans:
        x.flat[::7] = np.nan
    return x


#: name: (function of T, NumPy's, arrays, whether it has a gradient).
A, B, V = (3, 4, 5), (4, 5), (7,)
SAME = {
    "nansum": ("nansum", [A], dict(axis=1)), "nanprod": ("nanprod", [A], dict(axis=(0, 2))),
    "nanmean": ("nanmean", [A], dict(axis=1)), "nanmean_all": ("nanmean", [A], {}),
    "nanmax": ("nanmax", [A], dict(axis=2, keepdims=True)), "nanmin": ("nanmin", [A], dict(axis=0)),
    "nanvar": ("nanvar", [A], dict(axis=1, ddof=1)), "nanstd": ("nanstd", [A], dict(axis=(0, 1))),
    "median": ("median", [A], dict(axis=1)), "median_all": ("median", [B], {}),
    "median_even": ("median", [(4, 6)], dict(axis=-1, keepdims=True)),
    "quantile": ("quantile", [A], dict(q=0.3, axis=(0, 2))),
    "quantiles": ("quantile", [A], dict(q=[0, 0.25, 1], axis=1)),
    "quantiles_kept": ("quantile", [A], dict(q=[[0.1, 0.9]], axis=(0, 1), keepdims=True)),
    "percentile": ("percentile", [V], dict(q=[10, 50])),
    "average": ("average", [A], dict(axis=1)),
    "inner": ("inner", [A, (2, 5)], {}), "inner_vectors": ("inner", [V, V], {}),
    "vdot": ("vdot", [B, B], {}), "cross": ("cross", [(4, 3), (4, 3)], {}),
    "cross_axis": ("cross", [(3, 4), (3, 4)], dict(axis=0)),
    "dstack": ("dstack", [[B, B]], {}), "dstack_vectors": ("dstack", [[V, V]], {}),
    "column_stack": ("column_stack", [[V, (7, 2), V]], {}), "row_stack": ("vstack", [[V, V]], {}),
    "append": ("append", [B, V], {}), "append_axis": ("append", [B, B], dict(axis=1)),
    "fliplr": ("fliplr", [B], {}), "flipud": ("flipud", [A], {}),
    "matrix_transpose": ("matrix_transpose", [A], {}),
    "convolve": ("convolve", [V, (3,)], {}),
    "convolve_same": ("convolve", [V, (4,)], dict(mode="same")),
    "convolve_valid": ("convolve", [(3,), V], dict(mode="valid")),
    "correlate": ("correlate", [V, (3,)], {}),
    "correlate_full": ("correlate", [V, (3,)], dict(mode="full")),
    "correlate_same": ("correlate", [V, (4,)], dict(mode="same")),
    "hypot": ("hypot", [B, B], {}), "sinc": ("sinc", [B], {}), "fmax": ("fmax", [B, B], {}),
    "fmin": ("fmin", [B, B], {}), "copysign": ("copysign", [B, B], {}), "fabs": ("fabs", [B], {}),
    "trapezoid": ("trapezoid", [B], dict(axis=0, dx=0.5)),
    "nan_to_num": ("nan_to_num", [B], dict(nan=3.0)),
    **{f"rot90_{k}": ("rot90", [B], dict(k=k)) for k in range(-1, 4)},
    "rot90_axes": ("rot90", [A], dict(axes=(2, 0))),
}  # fmt: skip
WITH_NANS = ("nansum", "nanprod", "nanmean", "nanmean_all", "nanmax", "nanmin", "nanvar", "nanstd")


@pytest.mark.parametrize("name", SAME)
def test_same_values_and_gradients_as_numpy(name, rng):
    of, shapes, options = SAME[name]
    whole = isinstance(shapes[0], list)
    shapes = shapes[0] if whole else shapes
    data = [draw(rng, *s, nans=name in WITH_NANS) for s in shapes]
    xs = [T.TensorType("float64", (None,) * a.ndim)() for a in data]
    ours, theirs = getattr(T, of), getattr(np, of)
    y = ours(xs, **options) if whole else ours(*xs, **options)
    want = theirs(data, **options) if whole else theirs(*data, **options)
    weights = rng.normal(size=np.shape(want))
    cost = T.nansum(y * weights)
    grads = grad(cost, xs)
    for mode in MODES:
        got, *dxs = function(xs, [y, *grads], mode=mode)(*data)
        assert got.dtype == np.asarray(want).dtype
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)
    at = function(xs, cost)
    for i, dx in enumerate(dxs):
        usable = np.isfinite(data[i])
        step = np.where(usable, rng.normal(size=data[i].shape), 0)
        sides = [[a + s * step if j == i else a for j, a in enumerate(data)] for s in (1e-6, -1e-6)]
        slope = (at(*sides[0]) - at(*sides[1])) / 2e-6
        np.testing.assert_allclose((dx * step)[usable].sum(), slope, rtol=1e-5, atol=1e-6)


DISCRETE = {
    "count_nonzero": lambda m, x: m.count_nonzero(x > 0, axis=1),
    "nanargmax": lambda m, x: m.nanargmax(x, axis=1),
    "nanargmin": lambda m, x: m.nanargmin(x),
    "isin": lambda m, x: m.isin(m.round(x), [0, 1]),
    "isin_invert": lambda m, x: m.isin(m.round(x), m.round(x[0]), invert=True),
    "signbit": lambda m, x: m.signbit(x), "heaviside": lambda m, x: m.heaviside(m.round(x), 0.5),
    "logical_and": lambda m, x: m.logical_and(m.round(x), x > 0),
    "logical_or": lambda m, x: m.logical_or(m.round(x), x > 0),
    "logical_xor": lambda m, x: m.logical_xor(m.round(x), x > 0),
    "logical_not": lambda m, x: m.logical_not(m.round(x)),
    "fmod": lambda m, x: m.fmod(x, np.float64(0.3)),
    "float_power": lambda m, x: m.float_power(m.floor(x), 2),
    "isposinf": lambda m, x: m.isposinf(x / (m.round(x) * 0)),
    "isneginf": lambda m, x: m.isneginf(x / (m.round(x) * 0)),
    "digitize": lambda m, x: m.digitize(x, np.array([-1.0, 0, 0.5])),
    "digitize_falling": lambda m, x: m.digitize(m.round(x), np.array([2.0, 1, 0, -1])),
    "digitize_falling_right": lambda m, x: m.digitize(m.round(x), np.array([1.0, 0]), right=True),
    "argwhere": lambda m, x: m.argwhere(x > 0.5),
    "nan_to_num_all": lambda m, x: m.nan_to_num(x / (m.round(x) * 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", DISCRETE)
def test_same_answers_as_numpy(name, rng):
    data = draw(rng, 4, 6)
    x = T.dmatrix()
    with np.errstate(all="ignore"):
        want = DISCRETE[name](np, data)
    for mode in MODES:
        got = function([x], DISCRETE[name](T, x), mode=mode)(data)
        np.testing.assert_array_equal(got, want)
        assert got.dtype == want.dtype


#: name: (function, points, its first and second derivative there).
SLOPES = {
    "hypot_equal": (lambda x: T.hypot(x, 3.0), [3, -3], [0.5**0.5, -(0.5**0.5)],
                    [0.5**1.5 / 3] * 2),
    "hypot_opposite": (lambda x: T.hypot(x, 2 - x), [1], [0], [2**0.5]),
    "hypot_zero": (lambda x: T.hypot(x, 5.0), [0], [0], [0.2]),
    "hypot_both_zero": (lambda x: T.hypot(x, x), [0], [0], [0]),
    "hypot_large": (lambda x: T.hypot(x, np.float64(1e300)), [1e300], [0.5**0.5], [0]),
    "sinc": (T.sinc, [0, 1e-20, 1e-8, 1],
             [0, -np.pi**2 * 1e-20 / 3, -np.pi**2 * 1e-8 / 3, -1],
             [-np.pi**2 / 3] * 3 + [2]),
    "std_of_equal": (lambda x: T.std(T.stack([x, x])), [2], [0], [0]),
    "nanstd_of_equal": (lambda x: T.nanstd(T.stack([x, x])), [2], [0], [0]),
}  # fmt: skip


@pytest.mark.parametrize("name", SLOPES)
def test_slopes_where_branches_meet(name):
    of, points, first, second = SLOPES[name]
    x = T.dscalar()
    slope = grad(of(x), x)
    f = function([x], [slope, grad(slope, x, disconnected_inputs="ignore")])
    found = np.array([f(p) for p in points])
    np.testing.assert_allclose(found, np.stack([first, second], 1), rtol=1e-12, atol=1e-15)


def test_numbers_beside_float64_keep_their_digits():
    x = T.dvector()
    found = function(
        [x],
        [
            T.linspace(x[0], 0.1, 3), T.choose([0, 1], [x, 0.1]),
            symdnn.scan(lambda v, c: c + v, x, 0.1)[0], T.linspace(0, 1, 3, dtype="float32"),
        ],
    )([0.3, 0.7])  # fmt: skip
    wanted = [np.linspace(0.3, 0.1, 3), [0.3, 0.1], [0.3 + 0.1, 0.3 + 0.1 + 0.7], [0, 0.5, 1]]
    for got, want in zip(found, wanted):
        np.testing.assert_allclose(got, want, rtol=1e-15)
    assert [v.dtype for v in found] == ["float64"] * 3 + ["float32"]


def test_hypot_with_infinity_is_infinity():
    x, y = T.dvectors(2)
    data = [np.array(v) for v in ([np.inf, np.nan, np.nan, 0], [np.nan, -np.inf, 1, -0.0])]
    np.testing.assert_array_equal(function([x, y], T.hypot(x, y))(*data), np.hypot(*data))


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "uint8", "float32"])
@pytest.mark.parametrize(
    "name", ["median", "nanmean", "nansum", "nanmax", "count_nonzero", "average"]
)
def test_dtypes_are_numpys(name, dtype, rng):
    data = rng.integers(0, 2 if dtype == "bool" else 9, (5, 4)).astype(dtype)
    x = T.matrix(dtype=dtype)
    got = function([x], getattr(T, name)(x, axis=0))(data)
    want = getattr(np, name)(data, axis=0)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert got.dtype == want.dtype if name != "nansum" else got.dtype.kind == want.dtype.kind


@pytest.mark.parametrize("parts", [1, 2, 3, 5, [2, 4], [0, 9]])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_array_split(parts, axis, rng):
    data = draw(rng, 7, 5)
    x = T.dmatrix()
    for of in ("array_split", "vsplit", "hsplit"):
        along = {"vsplit": 0, "hsplit": 1}.get(of, axis)
        cut = T.array_split(x, parts, axis) if of == "array_split" else getattr(T, of)(x, parts)
        for got, want in zip(
            function([x], cut)(data), np.array_split(data, parts, along), strict=True
        ):
            np.testing.assert_array_equal(got, want)


def test_chunks_are_pytorchs(rng):
    data = draw(rng, 7, 2)
    x = T.dmatrix()
    sizes = [len(p) for p in function([x], T.chunk(x, 3))(data)]
    assert sizes == [3, 3, 1]
    assert [len(p) for p in function([x], T.chunk(x, 4))(data[:5])] == [2, 2, 1, 0]
    assert [p.shape for p in function([x], T.chunk(x, 2, axis=1))(data)] == [(7, 1), (7, 1)]
    with pytest.raises(OptionError, match="at least 1"):
        T.chunk(x, 0)
    fixed = T.TensorType("float64", (3, None))()
    assert [p.eval({fixed: data[:3]}).tolist() for p in T.unstack(fixed)] == data[:3].tolist()


@pytest.mark.parametrize("k", [-2, 0, 3])
def test_indices_of_triangles_and_shapes(k, rng):
    n, m = T.lscalars(2)
    ours = [*T.tril_indices(n, k, m), *T.triu_indices(n, k, m), *T.diag_indices(n)]
    want = [*np.tril_indices(4, k, 5), *np.triu_indices(4, k, 5), *np.diag_indices(4)]
    for a, b in zip(function([n, m], ours)(4, 5), want, strict=True):
        np.testing.assert_array_equal(a, b)
    i, shape = T.lmatrix(), T.TensorType("int64", (3,))()
    flat = rng.integers(0, 24, (2, 3))
    found = function([i, shape], list(T.unravel_index(i, shape)))
    for a, b in zip(found(flat, [2, 3, 4]), np.unravel_index(flat, (2, 3, 4)), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(AssertionFailed, match="out of range"):
        found(flat + 24, [2, 3, 4])
    parts = T.lvectors(3)
    back = function([*parts, shape], T.ravel_multi_index(parts, shape))
    indices = [rng.integers(0, d, 6) for d in (2, 3, 4)]
    wanted = np.ravel_multi_index(indices, (2, 3, 4))
    np.testing.assert_array_equal(back(*indices, [2, 3, 4]), wanted)
    with pytest.raises(AssertionFailed, match="out of range"):
        back(*[p + 4 for p in indices], [2, 3, 4])


@pytest.mark.parametrize("words", [{}, {"bins": 4}, {"bins": [-1.0, 0, 0.2, 2]},
                                   {"bins": 5, "range": (-0.5, 0.5)}, {"density": True},
                                   {"weights": True}])  # fmt: skip
def test_histogram(words, rng):
    data = draw(rng, 8, 5)
    weights = rng.random(40)
    x, w = T.dmatrix(), T.dvector()
    ours = {**words, "weights": w} if "weights" in words else words
    theirs = {**words, "weights": weights.reshape(8, 5)} if "weights" in words else words
    f = function([x, w], list(T.histogram(x, **ours)), on_unused_input="ignore")
    for a, b in zip(f(data, weights), np.histogram(data, **theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
        assert a.dtype == b.dtype
    flat = np.full((2, 2), 3.0)
    if not words:
        np.testing.assert_array_equal(f(flat, weights)[0], np.histogram(flat)[0])
    with pytest.raises(OptionError, match="bins"):
        T.histogram(x, bins=0)


def test_interp(rng):
    xp, fp = np.sort(draw(rng, 6)), draw(rng, 6)
    at = np.concatenate([draw(rng, 20) * 2, xp])
    x, p, q = T.dvectors(3)
    y = T.interp(x, p, q)
    np.testing.assert_allclose(function([x, p, q], y)(at, xp, fp), np.interp(at, xp, fp), rtol=1e-9)
    ends = T.interp(x, p, q, left=-7, right=9.0)
    np.testing.assert_allclose(function([x, p, q], ends)(at, xp, fp),
                               np.interp(at, xp, fp, -7, 9.0), rtol=1e-9)  # fmt: skip
    dx, dq = function([x, p, q], grad(y.sum(), [x, q]))(at[:20], xp, fp)
    step = 1e-7
    slopes = (np.interp(at[:20] + step, xp, fp) - np.interp(at[:20] - step, xp, fp)) / (2 * step)
    np.testing.assert_allclose(dx, slopes, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(dq.sum(), 20, rtol=1e-9)


def test_softmax_keeps_the_shape(rng):
    data = draw(rng, 3, 4) * 50
    x = T.dmatrix()
    for axis in (0, 1, -1):
        got = function([x], [T.softmax(x, axis), T.log_softmax(x, axis)])(data)
        np.testing.assert_allclose(got[0], scipy.special.softmax(data, axis), rtol=1e-12)
        np.testing.assert_allclose(got[1], scipy.special.log_softmax(data, axis), rtol=1e-12)
    assert T.softmax(T.dvector()).ndim == 1
    assert T.softmax(T.ivector()).dtype == symdnn.config.floatX
    p = rng.uniform(0.1, 0.9, (3, 4))
    np.testing.assert_allclose(function([x], T.logit(x))(p), scipy.special.logit(p))
    np.testing.assert_allclose(function([x], T.rsqrt(x))(p), p**-0.5)
    np.testing.assert_allclose(function([x], T.lerp(x, 2 * x, 0.25))(p), 1.25 * p)


def test_weighted_averages(rng):
    data, w = draw(rng, 4, 5), rng.random((4, 5))
    x, v, m = T.dmatrix(), T.dvector(), T.dmatrix()
    got = function([x, v], T.average(x, axis=1, weights=v))(data, w[0])
    np.testing.assert_allclose(got, np.average(data, 1, w[0]))
    for axis in (None, 0, 1):
        got = function([x, m], T.average(x, axis=axis, weights=m))(data, w)
        np.testing.assert_allclose(got, np.average(data, axis, w))
    with pytest.raises(SymdnnError):
        T.average(x, weights=v)


def test_statistics_of_nan_and_of_nothing():
    x = T.dvector()
    bad = np.array([1, np.nan, 2])
    for of in (T.median, lambda v: T.quantile(v, 0.5), T.nanmean, T.nanmax, T.nanvar):
        data = bad if of in (T.median,) else np.full(2, np.nan)
        assert np.isnan(function([x], of(x))(data))
    f = function([x], [T.nansum(x), T.nanprod(x)])
    assert [float(v) for v in f([np.nan])] == [0, 1]


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (0,), (2, 0, 3)])
@pytest.mark.parametrize("name", ["median", "quantile", "percentile"])
def test_order_statistics_of_no_elements_are_nan(name, shape):
    more = () if name == "median" else (0.25,)
    data = np.zeros(shape)
    x = T.tensor("float64", (None,) * len(shape))
    for axis in (None, *range(len(shape))):
        got = function([x], getattr(T, name)(x, *more, axis=axis))(data)
        want = np.median(np.zeros(1)) if axis is None else data.sum(axis)
        assert got.shape == np.shape(want)
        assert np.isnan(got).all()


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("name", ["convolve", "correlate"])
@pytest.mark.parametrize("dtype", T.all_dtypes)
def test_convolutions_of_all_dtypes(name, mode, dtype, rng):
    """Ints wrap as NumPy's do, complex numbers keep their imaginary parts."""

    def drawn(n):
        if np.dtype(dtype).kind in "iu":
            info = np.iinfo(dtype)
            return rng.integers(info.min, info.max, n, dtype, endpoint=True)
        return (rng.normal(size=n) + 1j * rng.normal(size=n)).astype(dtype)

    x, w = T.tensor(dtype, (None,)), T.tensor(dtype, (None,))
    f = function([x, w], getattr(T, name)(x, w, mode=mode))
    for n, m in ((5, 3), (4, 4), (1, 1), (7, 2), (2, 4), (3, 7), (2, 5)):
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            a, b = drawn(n), drawn(m)
            want = getattr(np, name)(a, b, mode=mode)
        got = f(a, b)
        assert got.dtype == want.dtype
        if want.dtype.kind in "biu":
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(got, want, atol=1e-2 if dtype == "float16" else 1e-5)


@pytest.mark.parametrize("whole", ["int32", "int64", "uint64"])
@pytest.mark.parametrize("name", ["hypot", "copysign", "arctan2", "fmod", "fmax", "lerp"])
def test_whole_numbers_beside_float64_keep_their_digits(name, whole, rng):
    big = rng.integers(np.iinfo(whole).max // 2, np.iinfo(whole).max, 7, whole)
    y = rng.uniform(1, 1e6, 7)
    of = {"lerp": lambda a, b: a + 0.5 * (b - a)}.get(name) or getattr(np, name)
    ours = (lambda a, b: T.lerp(a, b, 0.5)) if name == "lerp" else getattr(T, name)
    i, v = T.tensor(whole, (None,)), T.dvector()
    for arrays, variables in (((big, y), (i, v)), ((y, big), (v, i))):
        got = function(list(variables), ours(*variables))(*arrays)
        assert got.dtype == "float64"
        np.testing.assert_allclose(got, of(*arrays), rtol=1e-14)


def test_interp_and_trapezoid_of_whole_numbers_keep_their_digits(rng):
    places = np.sort(rng.integers(2**40, 2**41, 5))
    values, at = rng.uniform(size=5), rng.integers(2**40, 2**41, 9)
    p, a, v = T.lvector(), T.lvector(), T.dvector()
    f = function([a, p, v], T.interp(a, p, v))
    np.testing.assert_allclose(f(at, places, values), np.interp(at, places, values), rtol=1e-12)
    f = function([p, v], T.trapezoid(p, v))
    np.testing.assert_allclose(f(places, values), np.trapezoid(places, values), rtol=1e-14)
    y, x = np.array([200, 100, 250], "uint8"), np.array([9, 5, 2], "uint8")
    assert T.trapezoid(y, x).eval() == np.trapezoid(y.astype("float64"), x.astype("float64"))


# --- hints ----------------------------------------------------------------------------------------

X = T.matrix("x")
CALLS = {
    "exp": lambda: np.exp(X), "sum": lambda: np.sum(X),
    "concatenate": lambda: np.concatenate([X, X]),
    "abs": lambda: np.abs(X), "max": lambda: np.max(X), "maximum": lambda: np.maximum(X, 1),
    "dot": lambda: np.dot(np.ones((2, 2)), X), "where": lambda: np.where(X, 1, 2),
    "cumsum": lambda: np.add.accumulate(X), "cummax": lambda: np.maximum.accumulate(X),
    "stack": lambda: np.stack([X]),
    "tanh": lambda: np.tanh(X), "mean": lambda: np.mean(X), "reshape": lambda: np.reshape(X, -1),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_numpys_functions_name_ours(name):
    with pytest.raises(SymbolicValueError, match=rf"use T\.{name} of symdnn"):
        CALLS[name]()
    assert callable(getattr(T, name))


def test_operators_between_arrays_and_variables_are_symbolic(rng):
    data, other = rng.uniform(1, 2, (2, 3, 3)).astype("float32")
    for op in ("+", "-", "*", "/", "//", "%", "**", "@", "<", "<=", ">", ">="):
        for text in (f"a {op} x", f"x {op} a", f"a[0, 0] {op} x" if op != "@" else f"a {op} x"):
            y = eval(text, {"a": data, "x": X})
            want = eval(text, {"a": data, "x": other})
            np.testing.assert_allclose(function([X], y)(other), want, rtol=1e-5)
    assert [data == X, data != X] == [False, True]
    again = data
    again += X
    np.testing.assert_allclose(function([X], again)(other), data + other)


@pytest.mark.parametrize("name", ["item", "backward", "cuda"])
def test_attributes_of_other_frameworks_give_a_hint(name):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; ") as raised:
        getattr(X, name)
    assert raised.value.name == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'$"):
        getattr(X, "nothing")  # noqa: B009
    assert not hasattr(X, name)


def test_transpose_exchanges_two_axes_in_pytorchs_way() -> None:
    x = T.tensor3("x")
    for y in (T.transpose(x, 1, 2), T.transpose(x, dim0=1, dim1=2), T.transpose(x, 1, dim1=2)):
        assert y.eval({x: np.ones((2, 3, 4), "float32")}).shape == (2, 4, 3)
    assert T.transpose(x, (2, 0, 1)).eval({x: np.ones((2, 3, 4), "float32")}).shape == (4, 2, 3)
    with pytest.raises(AxisError, match="two axes, dim0 and dim1"):
        T.transpose(x, dim0=1)
