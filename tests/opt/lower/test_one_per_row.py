"""Writes of one element to each row of zeros: they are comparisons, near misses, values, errors."""

import numpy as np
import pytest

import symdnn.tensor as T
from symdnn.compile.function import function
from symdnn.errors import IndexOutOfRange, ShapeMismatch
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor
from symdnn.transforms.vectorize import vmap

RNG = np.random.default_rng(2)
X, AT = RNG.standard_normal((5, 4)), np.array([3, 0, -1, 2, -4])


def writes(f):
    return sum(isinstance(n.op, AdvancedIncSubtensor) for n in f.fgraph.toposort())


def compiled(build, *values):
    x, i = T.dmatrix("x"), T.lvector("i")
    f = function([x, i], build(x, i))
    return f, f(*values)


def test_the_gradient_of_an_element_of_each_row():
    def build(x, i):
        return T.grad((x[T.arange(x.shape[0]), i] ** 2).sum(), x)

    f, got = compiled(build, X, AT)
    want = np.zeros_like(X)
    want[np.arange(5), AT] = 2 * X[np.arange(5), AT]
    np.testing.assert_array_equal(got, want)
    assert writes(f) == 0
    with pytest.raises(IndexOutOfRange, match="index 4 is out of range"):
        f(X, np.full(5, 4))
    assert f(X[:0], AT[:0]).shape == (0, 4)


def test_the_gradient_of_an_element_of_each_example():
    x, i = T.dtensor3("x"), T.lvector("i")
    grads = vmap(lambda v, k: T.grad((v[k] ** 2).sum(), v))(x, i)
    f = function([x, i], grads)
    values = RNG.standard_normal((5, 4, 3))
    want = np.zeros_like(values)
    want[np.arange(5), AT] = 2 * values[np.arange(5), AT]
    np.testing.assert_array_equal(f(values, AT), want)
    assert writes(f) == 0


def test_the_gradient_of_take_along_axis():
    """Whose indices are a column."""

    def build(x, i):
        x = T.specify_shape(x, (5, 4))
        return T.grad((T.take_along_axis(x, i[:, None], 1) ** 2).sum(), x)

    f, got = compiled(build, X, AT)
    want = np.zeros_like(X)
    want[np.arange(5), AT] = 2 * X[np.arange(5), AT]
    np.testing.assert_array_equal(got, want)
    assert writes(f) == 0
    with pytest.raises(IndexOutOfRange, match="index 4 is out of range"):
        f(X, np.full(5, 4))


def test_values_of_unknown_columns_are_written():
    """Where the indices are a column, and only a call shows that the values are one."""
    i = T.TensorType("int64", (5, 1))("i")
    rows = np.arange(5)[:, None]
    for sizes in ((5, None), (None, None)):
        y = T.TensorType("float64", sizes)("y")
        f = function([y, i], T.inc_subtensor(T.zeros((5, 4), "float64")[rows, i], y))
        want = np.zeros((5, 4))
        want[rows, AT[:, None]] = X[:, :1]
        np.testing.assert_array_equal(f(X[:, :1], AT[:, None]), want)


@pytest.mark.parametrize("which", ["rows in another order", "fewer rows", "no zeros"])
def test_other_writes_stay(which):
    def build(x, i):
        n = x.shape[0]
        zeros = T.zeros_like(x)
        if which == "rows in another order":
            return T.inc_subtensor(zeros[T.arange(n)[::-1], i], x[:, 0])
        if which == "fewer rows":
            return T.inc_subtensor(zeros[T.arange(n - 1), i[1:]], x[1:, 0])
        return T.inc_subtensor(x[T.arange(n), i], x[:, 0])

    f, got = compiled(build, X, AT)
    want = np.zeros_like(X) if which != "no zeros" else X.copy()
    if which == "rows in another order":
        want[np.arange(5)[::-1], AT] = X[:, 0]
    elif which == "fewer rows":
        want[np.arange(4), AT[1:]] = X[1:, 0]
    else:
        want[np.arange(5), AT] += X[:, 0]
    np.testing.assert_array_equal(got, want)
    assert writes(f) == 1


def test_several_writes_to_the_only_row_stay():
    f, got = compiled(lambda x, i: T.inc_subtensor(T.zeros((1, 4))[[0], i], x[:, 0]), X, AT)
    want = np.zeros((1, 4))
    np.add.at(want, (0, AT), X[:, 0])
    np.testing.assert_allclose(got, want)
    assert writes(f) == 1


@pytest.mark.parametrize(("rows", "labels"), [(1, 3), (3, 1), (2, 3), (3, 0)])
def test_other_numbers_of_labels_than_rows_are_refused(rows, labels):
    x, i, y = T.dmatrix("x"), T.lvector("i"), T.dvector("y")
    f = function([x, i, y], T.inc_subtensor(T.zeros_like(x)[T.arange(x.shape[0]), i], y))
    assert writes(f) == 0
    assert f(X[:2], AT[:2], X[:2, 0]).shape == (2, 4)
    with pytest.raises(ShapeMismatch):
        f(X[:rows], AT[:labels], X[:labels, 0])
    with pytest.raises(ShapeMismatch):
        f(X[:rows], AT[:labels], X[:rows, 0])
    g = function([x, i], T.set_subtensor(T.zeros_like(x)[T.arange(x.shape[0]), i], 1.0))
    assert writes(g) == 0
    with pytest.raises(ShapeMismatch):
        g(X[:rows], AT[:labels])
    h = function([x, i], T.grad((x[T.arange(x.shape[0]), i] ** 2).sum(), x))
    with pytest.raises(ShapeMismatch):
        h(X[:rows], AT[:labels])
