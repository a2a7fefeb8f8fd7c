"""``theano.typed_list``: lists of arrays as inputs and outputs, against Python's own lists."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

RNG = np.random.default_rng(0)
SHAPES = [(2, 3), (1, 1), (0, 4), (3, 2)]
ITEMS = [RNG.standard_normal(s) for s in SHAPES]
MATRICES = [*ITEMS, ITEMS[1]]


def same(got, wanted):
    """Whether two lists, perhaps nested, hold equal arrays."""
    if not isinstance(wanted, list):
        return np.array_equal(got, wanted) and np.shape(got) == np.shape(wanted)
    return len(got) == len(wanted) and all(map(same, got, wanted))


@pytest.fixture
def tl(theano):
    import theano.typed_list

    return theano.typed_list


@pytest.fixture
def x(tl, T):
    return tl.TypedListType(T.dmatrix)("x")


@pytest.mark.parametrize(
    "chosen",
    [
        slice(None), slice(1, None), slice(None, None, -1), slice(3, 0, -2), slice(-2, None),
        slice(-9, 9), slice(5, 1), slice(None, -1, -1), slice(10, None, -3), slice(0, -10, -1),
    ],
)  # fmt: skip
def test_slices_of_known_and_of_given_bounds(theano, x, chosen):
    from theano.tensor.type_other import SliceType

    s = SliceType()("s")
    assert same(theano.function([x], x[chosen])(MATRICES), MATRICES[chosen])
    assert same(theano.function([x, s], x[s])(MATRICES, chosen), MATRICES[chosen])


def test_items_by_index(theano, T, x):
    i = T.lscalar("i")
    f = theano.function([x, i], x[i])
    for k in range(-5, 5):
        assert same(f(MATRICES, k), MATRICES[k])
    for k in (-6, 5):
        with pytest.raises(IndexError):
            f(MATRICES, k)
    with pytest.raises(TypeError, match="integer scalar or a slice"):
        x[T.dmatrix()]


def test_inserting_is_bounded_as_in_python(theano, T, tl, x):
    i, m = T.lscalar("i"), T.dmatrix("m")
    f = theano.function([x, i, m], tl.insert(x, i, m))
    for k in range(-7, 8):
        wanted = list(MATRICES)
        wanted.insert(k, np.ones((2, 2)))
        assert same(f(MATRICES, k, np.ones((2, 2))), wanted)


@pytest.mark.parametrize(
    "item", [ITEMS[1], ITEMS[2], np.zeros((0, 9)), np.ones((1, 1)), ITEMS[0].T]
)
def test_what_depends_on_equal_items(theano, T, tl, x, item):
    m = T.dmatrix("m")
    f = theano.function([x, m], [tl.remove(x, m), tl.count(x, m), tl.index_(x, m)])
    equal = [same(v, item) for v in MATRICES]
    if not any(equal):
        removed, count = theano.function([x, m], [x.remove(m), x.count(m)])(MATRICES, item)
        assert same(removed, MATRICES)
        assert count == 0
        with pytest.raises(AssertionError, match="no item of the list is equal"):
            f(MATRICES, item)
        return
    removed, count, index = f(MATRICES, item)
    first = equal.index(True)
    assert same(removed, MATRICES[:first] + MATRICES[first + 1 :])
    assert (count, index, index.dtype) == (sum(equal), first, "float64")


def test_the_other_methods(theano, T, tl, x):
    m = T.dmatrix("m")
    outputs = [x.append(m), x.extend(tl.make_list([m, m * 2])), x.reverse(), tl.length(x)]
    f = pickle.loads(pickle.dumps(theano.function([x, m], outputs)))
    item = np.ones((2, 1))
    longer, extended, reverse, n = f(MATRICES, m=item)
    assert same(longer, [*MATRICES, item])
    assert same(extended, [*MATRICES, item, 2 * item])
    assert same(reverse, MATRICES[::-1])
    assert (n, n.dtype) == (5, "int64")
    assert same(theano.function([x], x.reverse())([]), [])
    assert same(x.append(m).eval({x: MATRICES[:1], m: item}), [MATRICES[0], item])


def test_lists_of_lists_and_of_numbers(theano, T, tl):
    inner = tl.TypedListType(T.dvector)("inner")
    x = tl.TypedListType(T.dvector, 1)("x")
    assert x.type.get_depth() == 1
    assert x.ttype == inner.type
    values = [[np.arange(2.0), np.arange(3.0)], [np.arange(1.0)], []]
    outputs = [x[0], x[1][-1], x.append(inner), x.reverse(), x.count(inner), x.remove(inner)]
    got = theano.function([x, inner], outputs)(values, values[1])
    wanted = [values[0], values[1][-1], [*values, values[1]], values[::-1], 1, values[::2]]
    for a, b in zip(got, wanted):
        assert same(a, b)
    numbers = tl.TypedListType(T.dscalar)("numbers")
    f = theano.function([numbers], [numbers[1] * 2, numbers.count(numbers[0])])
    assert f([1.0, 2.0, 1.0]) == [4, 2]


def test_gradients_go_through_lists(theano, T, x):
    m = T.dmatrix("m")
    cost = (x.append(m)[-1] ** 2).sum() + (x[0] * 3).sum()
    slopes = theano.function([x, m], T.grad(cost, [x, m]))
    d_list, d_item = slopes(MATRICES, np.ones((2, 1)))
    assert same(d_item, np.full((2, 1), 2.0))
    assert same(d_list, [np.full((2, 3), 3.0), *(np.zeros_like(v) for v in MATRICES[1:])])


def test_what_does_not_fit_is_refused(theano, T, tl, x):
    f = theano.function([theano.In(x, borrow=True, mutable=True)], x[0])
    with pytest.raises(TypeError, match=r"input 0 \(x\).*wanted a list"):
        f(np.ones((2, 2)))
    with pytest.raises(TypeError, match="ndim|dimension"):
        f([np.ones(2)])
    with pytest.raises(TypeError, match="an item of"):
        x.append(T.dvector())
    with pytest.raises(TypeError, match="make_list"):
        tl.make_list([T.dvector(), T.dmatrix()])
    with pytest.raises(TypeError, match="type of a tensor or of a list"):
        tl.TypedListType("float64")
    with pytest.raises(ValueError, match="depth"):
        tl.TypedListType(T.dvector, -1)
    with pytest.raises(TypeError):
        list(x)


def test_sparse_inputs_take_the_words_of_in(theano, T):
    import theano.sparse
    from scipy import sparse

    a, b = sparse.random(4, 5, 0.5, format="csr"), RNG.standard_normal((5, 2))
    s, w = theano.sparse.csr_matrix("s"), T.dmatrix("w")
    f = theano.function([w, theano.In(s, borrow=True, value=a)], theano.sparse.dot(s, w))
    for got, wanted in ((f(b), a @ b), (f(b, 2 * a), 2 * (a @ b)), (f(b, s=3 * a), 3 * (a @ b))):
        np.testing.assert_allclose(got, wanted)
