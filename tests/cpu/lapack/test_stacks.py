"""Stacks of small matrices in the lanes of vectors, against NumPy in float64."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.errors import SymdnnError
from symdnn.ops.matrix.lu import LUFactor, LUSolve
from tests.cpu.harness import compiled

pytestmark = compiled


def made(inputs, output, *values):
    """The result of a new function."""
    return symdnn.function(inputs, output)(*values)


@pytest.mark.parametrize("n", [2, 3, 5, 12])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_determinants_inverses_and_solutions(rng, n, dtype):
    count = int(rng.integers(16, 40))
    a = rng.normal(size=(count, n, n)) + 5 * np.eye(n)[:, rng.permutation(n)]  # well conditioned
    a = a.astype(dtype)
    a[1, 0, 0], a[2] = 0, a[2][::-1] * 1e-8  # a pivot that is exchanged; a tiny determinant
    b = rng.normal(size=(count, n, int(rng.integers(1, 5)))).astype(dtype)
    x, y = T.tensor(dtype, a.shape), T.tensor(dtype, b.shape)
    wide, close = a.astype("float64"), 1e-10 if dtype == "float64" else 1e-3
    cases = [
        (T.linalg.det(x), np.linalg.det(wide), [x], [a]),
        (T.linalg.slogdet(x)[1], np.linalg.slogdet(wide)[1], [x], [a]),
        (T.linalg.slogdet(x)[0], np.linalg.slogdet(wide)[0], [x], [a]),
        (T.linalg.inv(x), np.linalg.inv(wide), [x], [a]),
        (T.linalg.solve(x, y), np.linalg.solve(wide, b), [x, y], [a, b]),
        (T.linalg.solve(x.dimshuffle(0, 2, 1), y), np.linalg.solve(wide.swapaxes(1, 2), b),
         [x, y], [a, b]),
    ]  # fmt: skip
    for out, wanted, inputs, values in cases:
        found = made(inputs, out, *values)
        rest = tuple(range(1, wanted.ndim))
        size = abs(wanted).max(rest, keepdims=True) if rest else abs(wanted)
        assert (abs(found - wanted) <= close * size + 1e-30).all()
        turned = [np.asfortranarray(v) for v in values]
        np.testing.assert_allclose(made(inputs, out, *turned), found, 1e-3, 1e-5)


def test_factors_and_solutions_by_rows_and_by_columns(rng):
    a, b = rng.normal(size=(19, 5, 5)), rng.normal(size=(19, 5, 2))
    x, y = T.tensor("float64", a.shape), T.tensor("float64", b.shape)
    for pivoted in ("rows", "columns"):
        factors, pivots = LUFactor(pivoted)(x)
        lu, exchanged = LUFactor(pivoted).compute(a)
        f = symdnn.function([x], [factors, pivots])
        np.testing.assert_allclose(f(a)[0], lu, 1e-8, 1e-12)
        np.testing.assert_array_equal(f(a)[1], exchanged)
        for transposed in (False, True):
            op = LUSolve(transposed=transposed, pivoted=pivoted)
            found = symdnn.function([x, y], op(factors, pivots, y))(a, b)
            wanted = np.linalg.solve(a.swapaxes(1, 2) if transposed else a, b)
            np.testing.assert_allclose(found, wanted, 1e-8, 1e-10)


@pytest.mark.parametrize("n", [3, 6])
def test_singular_matrices_are_named_or_nan(rng, n):
    a = rng.normal(size=(21, n, n))
    a[[4, 20]] = 0
    a[11, 1] = np.nan
    x, bad = T.tensor("float64", a.shape), np.isin(np.arange(21), [4, 11, 20])
    assert (symdnn.function([x], T.linalg.det(x))(a)[[4, 20]] == 0).all()
    assert np.isnan(symdnn.function([x], T.linalg.det(x))(a)[11])
    found = symdnn.function([x], T.linalg.inv(x, check=False))(a)
    assert np.isnan(found[bad]).any((1, 2)).all()
    np.testing.assert_allclose(found[~bad], np.linalg.inv(a[~bad]), 1e-8, 1e-10)
    for out in (T.linalg.inv(x), T.linalg.solve(x, x)):
        with pytest.raises(SymdnnError, match="4"):
            symdnn.function([x], out)(a)


def test_bits_depend_on_neither_neighbours_nor_threads(rng):
    a = rng.normal(size=(3000, 4, 4))
    x = T.tensor("float64", a.shape)
    f = symdnn.function([x], T.linalg.inv(x))
    few = T.tensor("float64", (9, 4, 4))
    some = symdnn.function([few], T.linalg.inv(few))
    whole = f(a)
    np.testing.assert_array_equal(whole[100:109], some(a[100:109]))
    with config.change_flags(**{"openmp.threads": 1}):
        np.testing.assert_array_equal(symdnn.function([x], T.linalg.inv(x))(a), whole)
