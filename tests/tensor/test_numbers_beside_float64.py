"""A Python float beside float64 keeps its digits, in every public function that takes one."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.graph.variable import Variable

PLAIN = symdnn.Mode(optimizer=None)
#: The number's own dtype is meant (Theano's), or numbers are drawn.
OTHERS = {"fill", "dropout", "spatial_dropout"}


def public():
    """Each function of ``T`` and ``T.nnet`` once."""
    for module in (T, T.nnet):
        for name, made in sorted(vars(module).items()):
            if callable(made) and not inspect.isclass(made) and name[0] != "_":
                yield name, made


def built(make, place, x, number):
    """What a function makes of ``x`` and a number; None where it takes no such ones."""
    args = [x, x]
    args[place] = number
    try:
        found = make(*args)
    except Exception:
        return None
    return found if isinstance(found, Variable) else None


def pairs(place, x):
    """(name, by a Python float, by a constant of float64), where they are of one dtype."""
    for name, make in public():
        if name not in OTHERS:
            ours = built(make, place, x, 0.3)
            exact = built(make, place, x, T.constant(np.float64(0.3)))
            if ours is not None and exact is not None and ours.type.dtype == exact.type.dtype:
                yield name, ours, exact


@pytest.mark.parametrize("place", [0, 1])
def test_no_digit_is_lost(place):
    x, compared, wrong = T.dvector("x"), 0, []
    for name, ours, exact in pairs(place, x):
        f = symdnn.function([x], [ours, exact], mode=PLAIN, on_unused_input="ignore")
        try:
            got, want = f(np.array([0.2, 0.55, 0.9]))
        except (symdnn.errors.SymdnnError, ValueError, IndexError):
            continue  # no values of this function
        compared += 1
        if not np.allclose(got, want, rtol=1e-14, atol=0, equal_nan=True):
            wrong.append((name, got, want))
    assert not wrong
    assert compared > 50


@pytest.mark.parametrize("name", ["hypot", "logaddexp2", "copysign", "arctan2", "fmax", "power"])
@pytest.mark.parametrize("number", [2, 2.5])
def test_numbers_do_not_widen_float32(name, number):
    make, x = getattr(T, name), T.fvector("x")
    at = np.array([0.5, 3], "float32")
    for y, want in [
        (make(x, number), getattr(np, name)(at, number)),
        (make(number, x), getattr(np, name)(number, at)),
    ]:
        found = symdnn.function([x], y)(at)
        assert y.type.dtype == found.dtype == want.dtype == "float32"
        np.testing.assert_allclose(found, want, 1e-6)
