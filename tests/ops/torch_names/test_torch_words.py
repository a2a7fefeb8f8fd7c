"""Words and forms of PyTorch and NumPy that functions of another convention take, too."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import ArgumentError, InputError, OptionError, ShapeMismatch
from symdnn.nn import functional as F

X = np.random.default_rng(3).normal(size=(4, 5))
Y = np.random.default_rng(4).normal(size=(4, 5))
NAN = np.where(abs(X) > 1, np.nan, X)


def run(build, *values):
    inputs = [T.TensorType(v.dtype.name, (None,) * v.ndim)() for v in map(np.asarray, values)]
    return symdnn.function(inputs, build(*inputs))(*values)


CASES = {
    "trace": (lambda x: T.trace(x, 1), np.trace(X, 1)),
    "trace of a method": (lambda x: x.trace(offset=-2), np.trace(X, -2)),
    "tensordot": (lambda x: T.tensordot(x, Y.T, dims=1), X @ Y.T),
    "cross": (lambda x: T.cross(x[:, :3], Y[:, :3], dim=1), np.cross(X[:, :3], Y[:, :3])),
    "trapezoid": (lambda x: T.trapezoid(x, dim=0), np.trapezoid(X, axis=0)),
    "vecdot": (lambda x: T.linalg.vecdot(x, Y, dim=0), (X * Y).sum(0)),
    "diff": (lambda x: T.diff(x, dim=0, append=x[:1]), np.diff(X, axis=0, append=X[:1])),
    "norm": (lambda x: T.linalg.norm(x, dim=1), np.linalg.norm(X, axis=1)),
    "nanquantile": (lambda x: T.nanquantile(x, 0.3, dim=1), np.quantile(X, 0.3, axis=1)),
    "searchsorted": (
        lambda x: T.searchsorted(T.sort(x[0]), x[0], right=True),
        np.argsort(np.argsort(X[0])) + 1,
    ),
    "clip above": (lambda x: T.clip(x, None, 0.5), np.clip(X, None, 0.5)),
    "clip of a method": (lambda x: x.clip(min=0), np.clip(X, 0, None)),
    "round of a method": (lambda x: x.round(decimals=1), X.round(1)),
    "to": (lambda x: x.to(dtype="float32"), X.astype("float32")),
    "unique": (lambda x: x.unique(return_counts=True)[1], np.ones(20, "int64")),
    "where": (lambda x: T.where(x > 0)[1], np.where(X > 0)[1]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_word_or_form_of_another_convention(name):
    build, wanted = CASES[name]
    np.testing.assert_allclose(run(build, X), wanted, rtol=1e-6)


def test_medians_without_nan_are_the_lower_ones():
    values, indices = run(lambda x: list(T.nanmedian(x, dim=1)), NAN)
    for row, value, index in zip(NAN, values, indices):
        known = np.sort(row[~np.isnan(row)])
        assert value == known[(len(known) - 1) // 2] == row[index]
    flat = np.sort(NAN[~np.isnan(NAN)])
    assert run(lambda x: x.nanmedian(), NAN) == flat[(len(flat) - 1) // 2]
    assert run(lambda x: x.median(), X) == np.sort(X.ravel())[9]
    assert np.isnan(run(lambda x: T.nanmedian(x, dim=0)[0], NAN * np.nan)).all()


@pytest.mark.parametrize("k", [0, 1, 4])
@pytest.mark.parametrize("symbolic", [False, True])
def test_the_best_of_none_to_all(k, symbolic):
    def build(x, n):
        best, places = T.topk_and_argtopk(x, n if symbolic else k, axis=0)
        return [best, places, T.grad(best.sum(), x)]

    inputs = [T.dmatrix(), T.lscalar()]
    f = symdnn.function(inputs, build(*inputs), on_unused_input="ignore")
    best, places, slope = f(X, k)
    np.testing.assert_array_equal(best, np.sort(X, axis=0)[::-1][:k])
    np.testing.assert_array_equal(places, np.argsort(-X, axis=0)[:k])
    assert slope.sum() == 5 * k
    with pytest.raises(ShapeMismatch, match="at most 4 elements"):
        symdnn.function(inputs, T.topk(inputs[0], inputs[1], axis=0))(X, 5)


@pytest.mark.parametrize("p", [0, 1, 2, 3, np.inf])
def test_a_distance_from_nan_is_nan(p):
    found = run(lambda x: [T.cdist(x, Y[:, :2], p), F.pdist(x, p)], NAN[:, :2])
    pairs = [(NAN[i, :2], NAN[j, :2]) for i in range(4) for j in range(i + 1, 4)]
    wanted = np.array([[_distance(a, b, p) for b in Y[:, :2]] for a in NAN[:, :2]])
    np.testing.assert_allclose(found[0], wanted)
    np.testing.assert_allclose(found[1], [_distance(a, b, p) for a, b in pairs])


def _distance(a, b, p):
    return np.nan if np.isnan(a - b).any() else np.linalg.norm(a - b, p)


def test_half_of_a_choice_is_refused():
    with pytest.raises(ArgumentError, match="both x and y"):
        T.where(T.dmatrix() > 0, 1.0)
    with pytest.raises(InputError, match="one dtype"):
        T.dmatrix().to()


@pytest.mark.parametrize("unitriangular", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("upper", [False, True])
def test_triangular_systems_from_both_sides(upper, left, unitriangular, rng):
    a = rng.normal(size=(2, 3, 3)) + 2 * np.eye(3)
    b = rng.normal(size=(2, 3, 4) if left else (2, 4, 3))
    words = {"upper": upper, "left": left, "unitriangular": unitriangular}
    x = run(lambda a, b: T.linalg.solve_triangular(a, b, **words), a, b)
    full = np.triu(a, unitriangular) if upper else np.tril(a, -unitriangular)
    full = full + unitriangular * np.eye(3)
    np.testing.assert_allclose(full @ x if left else x @ full, b, atol=1e-12)


@pytest.mark.parametrize("name", ["tril_indices", "triu_indices"])
def test_indices_of_triangles_by_row_col_and_offset(name):
    ours = getattr(T, name)
    wanted = np.stack(getattr(np, name)(3, -1, 4))
    for found in (ours(3, 4, offset=-1), ours(row=3, col=4, offset=-1)):
        np.testing.assert_array_equal(found.eval(), wanted)
    with pytest.raises(OptionError, match=rf"m=-1; .*{name}\(row, col, offset=...\)"):
        ours(3, 3, -1)
