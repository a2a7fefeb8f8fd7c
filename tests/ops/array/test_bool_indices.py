"""Bools in an index: masks of no dimension, and the places of masks of several."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.ops.array.getitem import Nonzero

X = np.arange(24.0).reshape(2, 3, 4)
ITEMS: tuple[Any, ...] = (
    True, False, None, ..., slice(1, None), 1, np.array([1, 0, 1]), np.array([[0], [1]]),
    np.array([True, False]), np.array([True, False, True]),
)  # fmt: skip


def indices() -> list[tuple[Any, ...]]:
    """All indices of up to three items with a bool that NumPy takes."""
    found = []
    for index in (i for n in (1, 2, 3) for i in product(ITEMS, repeat=n)):
        if not any(isinstance(i, bool) for i in index):
            continue
        try:
            X[index]
        except IndexError:
            continue
        found.append(index)
    return found


def test_a_bool_is_a_mask_of_no_dimension() -> None:
    found = indices()
    assert len(found) > 150
    for kind in (T.dtensor3("x"), symdnn.shared(X)):
        values = [kind[index] for index in found]
        f = symdnn.function([kind] if kind.owner is None and kind.name else [], values)
        got = f(X) if kind.name else f()
        for index, value in zip(found, got, strict=True):
            np.testing.assert_array_equal(value, X[index], err_msg=str(index))


def test_bools_may_be_arrays_or_symbolic() -> None:
    found, x, yes, no = indices(), T.dtensor3("x"), T.bscalar("yes"), T.bscalar("no")
    found = [i for i in found if not any(isinstance(k, np.ndarray) for k in i)]
    assert len(found) > 100
    symbols = {True: T.neq(yes, 0), False: T.neq(no, 0)}

    def given(index: tuple[Any, ...], kind: Any) -> tuple[Any, ...]:
        return tuple(kind(i) if isinstance(i, bool) else i for i in index)

    values = [x[given(index, np.array)] for index in found]
    values += [x[given(index, symbols.__getitem__)] for index in found]
    slopes = [T.grad((value**2).sum(), x) for value in values]
    got = symdnn.function([x, yes, no], values + slopes)(X, 1, 0)
    for index, value, slope in zip(found * 2, got, got[len(values) :]):
        np.testing.assert_array_equal(value, X[index], err_msg=str(index))
        wanted = np.zeros_like(X)
        np.add.at(wanted, index, 2 * X[index])
        np.testing.assert_array_equal(slope, wanted, err_msg=str(index))


@pytest.mark.parametrize("write", [T.set_subtensor, T.inc_subtensor])
def test_values_of_unknown_sizes_are_written_by_new_axes_and_bools(write: Any) -> None:
    """``y`` has the part's shape, which its type does not know."""
    found = [i for i in indices() if not any(k is False for k in i)]
    x, yes = T.dtensor3("x"), T.bscalar("yes")
    symbols = [tuple(T.neq(yes, 0) if k is True else k for k in i) for i in found]
    found = [*found, *found, (None,), (0, None), (..., None), (slice(1, None), None, [1, 0])]
    parts = [x[i] for i in (*found[: len(symbols)], *symbols, *found[2 * len(symbols) :])]
    ys = [T.TensorType("float64", (None,) * X[i].ndim)() for i in found]
    values = [np.arange(X[i].size, dtype=float).reshape(X[i].shape) - 5 for i in found]
    made = [write(part, y) for part, y in zip(parts, ys, strict=True)]
    got = symdnn.function([x, yes, *ys], made)(X, 1, *values)
    for index, value, new in zip(found, values, got, strict=True):
        wanted = X.copy()
        if write is T.inc_subtensor:
            np.add.at(wanted, index, value)
        else:
            wanted[index] = value
        np.testing.assert_array_equal(new, wanted, err_msg=str(index))


def test_values_and_slopes_of_parts_by_bools() -> None:
    found, x = indices(), T.dtensor3("x")
    made = [T.set_subtensor(x[index], -1.0) for index in found]
    slopes = [T.grad((x[index] ** 2).sum(), x) for index in found]
    f = symdnn.function([x], made + slopes)
    got = f(X)
    for index, value, slope in zip(found, got, got[len(found) :]):
        wanted = X.copy()
        wanted[index] = -1
        np.testing.assert_array_equal(value, wanted, err_msg=str(index))
        wanted = np.zeros_like(X)
        np.add.at(wanted, index, 2 * X[index])
        np.testing.assert_array_equal(slope, wanted, err_msg=str(index))


@pytest.mark.parametrize("index", [True, False, (None, True), (True, ...), np.True_])
def test_of_a_scalar(index: Any) -> None:
    x = T.dscalar("x")
    got = symdnn.function([x], x[index])(3.0)
    np.testing.assert_array_equal(got, np.array(3.0)[index])


def test_arrays_that_do_not_fit_a_false() -> None:
    with pytest.raises((IndexError, ValueError)):
        symdnn.function([], symdnn.shared(X)[False, np.array([0, 1])])()


@pytest.mark.parametrize("shape", [(70, 90), (9, 1, 30, 40), (5000, 2), (2, 0, 5000), (3, 4)])
@pytest.mark.parametrize("dtype", ["bool", "int64", "float32", "complex64"])
def test_places_along_several_axes_are_those_of_numpy(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str
) -> None:
    x = np.where(rng.random(shape) < 0.3, rng.normal(size=shape), 0).astype(dtype)
    if dtype == "float32":
        x[x > 1], x[x < -1] = np.nan, -0.0
    for given in (x, x.T, x[::-1]):
        found, wanted = Nonzero().reference(given), np.nonzero(given)
        assert len(found) == given.ndim
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == np.int64
