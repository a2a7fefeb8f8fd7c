"""Products of a matrix and its own transpose: half of them, and a mirror image."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.cpu.gemm import gemm
from symdnn.cpu.gemm.gemm_gram import GramLaunch
from symdnn.cpu.threads import thread_pools
from tests.seeded import new_rng

CPU = symdnn.Mode(target="cpu")
SIZES = [(128, 300), (200, 1000), (333, 97), (290, 700), (145, 1100)]
LAYOUTS = {
    "C order": lambda a: a,
    "Fortran order": np.asfortranarray,
    "every second row": lambda a: np.repeat(a, 2, 0)[::2],
    "every second column": lambda a: np.repeat(a, 2, 1)[:, ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("rows", "terms"), SIZES)
def test_the_bits_are_those_of_the_whole_product(rows, terms, turned, layout):
    given = LAYOUTS[layout](new_rng().normal(size=(rows, terms)).astype("float32"))
    given = given.T if turned else given
    x, y = T.fmatrices(2)

    def product(a, b):
        return T.dot(a.T, b) if turned else T.dot(a, b.T)

    half = symdnn.function([x], product(x, x), mode=CPU)
    whole = symdnn.function([x, y], product(x, y), mode=CPU)
    for _ in range(4):
        got = half(given)
        np.testing.assert_array_equal(got, whole(given, given))
        np.testing.assert_array_equal(got, got.T)
    wide = given.astype("float64")
    np.testing.assert_allclose(got, wide.T @ wide if turned else wide @ wide.T, 1e-4, 1e-3)


def test_threads_do_not_change_bits():
    given = new_rng().normal(size=(300, 500)).astype("float32")
    x = T.fmatrix()
    f = symdnn.function([x], T.dot(x, x.T), mode=CPU)
    first = f(given)
    with thread_pools.limited(1):
        one = symdnn.function([x], T.dot(x, x.T), mode=CPU)(given)
    np.testing.assert_array_equal(first, one)


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (lambda x, y: T.dot(x, x.T), True),
        (lambda x, y: T.dot(x.T, x), True),
        (lambda x, y: T.dot(x[:150], x[:150].T), True),
        (lambda x, y: T.dot(x, x), False),
        (lambda x, y: T.dot(x, y.T), False),
        (lambda x, y: T.dot(x, x[::-1].T), False),
        (lambda x, y: T.nnet.relu(T.dot(x, x.T)), False),
        (lambda x, y: T.dot(x, x.T) + y, False),
        (lambda x, y: T.dot(x[:20], x[:20].T), False),
    ],
)
def test_which_products_are_halved(build, wanted, monkeypatch):
    made, init = [], GramLaunch.__init__
    monkeypatch.setattr(GramLaunch, "__init__", lambda self, *a: made.append(1) or init(self, *a))
    x, y = T.fmatrices(2)
    a, b = new_rng().normal(size=(2, 240, 240)).astype("float32")
    f = symdnn.function([x, y], build(x, y), mode=CPU, on_unused_input="ignore")
    got = f(a, b)
    assert bool(made) == wanted
    monkeypatch.setattr(gemm, "is_gram", lambda call: False)
    f = symdnn.function([x, y], build(x, y), mode=CPU, on_unused_input="ignore")
    np.testing.assert_array_equal(got, f(a, b))
