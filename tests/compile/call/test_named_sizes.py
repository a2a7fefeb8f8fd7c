"""Sizes of one name in calls: equal values, different values, and the errors."""

import copy
import pickle

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import In
from symdnn.compile.call.named_sizes import NamedSizes
from symdnn.errors import ArgumentShapeMismatch, InputError, ShapeMismatch


def ones(*shape):
    return np.ones(shape, "float32")


def named(*shape, name=None):
    return T.tensor("float32", shape, name)


@pytest.fixture
def pair():
    """A function of two inputs with a name in common; each size it is called with is new."""
    x, y = named("batch", 3, name="x"), named("batch", name="y")
    return symdnn.function([x, y], x.sum(1) * y, name="f")


@pytest.mark.parametrize("trusted", [False, True])
def test_a_function_takes_any_size_that_agrees(pair, trusted):
    pair.trust_input = trusted
    for n in (4, 1, 4, 0, 7, 1):
        np.testing.assert_array_equal(pair(ones(n, 3), ones(n)), np.full(n, 3))
        np.testing.assert_array_equal(pair(ones(n, 3), y=ones(n)), np.full(n, 3))


@pytest.mark.parametrize("sizes", [(4, 3), (1, 4), (4, 1), (0, 1)])
@pytest.mark.parametrize("calls_before", [0, 3])
def test_sizes_that_differ_are_named_with_their_inputs(pair, sizes, calls_before):
    for n in sizes * calls_before:
        pair(ones(n, 3), ones(n))
    with pytest.raises(ArgumentShapeMismatch) as info:
        pair(ones(sizes[0], 3), ones(sizes[1]))
    assert str(info.value).startswith(
        f"f: wanted one size batch, got {sorted(sizes)}: input 0 (x) has {sizes[0]} in axis 0, "
        f"input 1 (y) has {sizes[1]} in axis 0. Pass arrays of equal sizes"
    )


def test_a_size_of_1_broadcasts_only_where_the_type_says_1():
    x = named("batch", 3, name="x")
    for other, value in ((named("batch", 3), ones(1, 3)), (T.fmatrix(), ones(1, 3))):
        f = symdnn.function([x, other], x + other)
        assert f(ones(1, 3), value).shape == (1, 3)
        with pytest.raises((ArgumentShapeMismatch, ShapeMismatch), match="batch|turned out to be"):
            f(ones(5, 3), value)
    row = T.frow("row")
    assert symdnn.function([x, row], x + row)(ones(5, 3), ones(1, 3)).shape == (5, 3)


def test_inputs_that_nothing_adds_are_compared_too():
    x, y = named("batch", 3), named("batch")
    f = symdnn.function([x, y], [x.sum(), y.sum()])
    with pytest.raises(ArgumentShapeMismatch, match="wanted one size batch, got \\[2, 3\\]"):
        f(ones(2, 3), ones(3))
    unused = symdnn.function([x, y], x.sum(), on_unused_input="ignore")
    with pytest.raises(ArgumentShapeMismatch, match="wanted one size batch"):
        unused(ones(2, 3), ones(3))


def test_an_input_may_have_one_name_twice():
    x = named("n", "n", name="x")
    f = symdnn.function([x], x + x.T)
    assert f(ones(3, 3)).shape == (3, 3)
    with pytest.raises(ArgumentShapeMismatch, match=r"\(x\) has 2 in axis 0, .* has 3 in axis 1"):
        f(ones(2, 3))


def test_a_dim_of_two_names_joins_what_has_either():
    x, y = named("batch"), named("time")
    z = T.TensorType("float32", (symdnn.Dim("batch", "time"),))()
    f = symdnn.function([x, y, z], x + z + y)
    assert f(ones(2), ones(2), ones(2)).shape == (2,)
    with pytest.raises(ArgumentShapeMismatch, match=r"wanted one size batch=time, got \[2, 3\]"):
        f(ones(2), ones(3), ones(2))


def test_a_shared_variable_may_change_with_its_name():
    x = named("batch", 3, name="x")
    state = symdnn.shared(ones(2, 3), "state", shape=("batch", 3))
    f = symdnn.function([x], x + state, updates=[(state, x + state)])
    f(ones(2, 3))
    state.set_value(ones(4, 3))
    assert f(ones(4, 3)).shape == (4, 3)
    assert state.get_value().shape == (4, 3)
    text = r"input 0 \(x\) has 2 in axis 0, the shared variable state has 4 in axis 0"
    with pytest.raises(ArgumentShapeMismatch, match=text):
        f(ones(2, 3))
    np.testing.assert_array_equal(state.get_value(), np.full((4, 3), 2))  # nothing was updated


def test_a_value_that_an_input_keeps_counts():
    x, y = named("batch", name="x"), named("batch", name="y")
    f = symdnn.function([x, In(y, value=ones(3))], x * y)
    assert f(ones(3)).shape == (3,)
    with pytest.raises(ArgumentShapeMismatch, match=r"input 1 \(y\) has 3 in axis 0"):
        f(ones(2))
    assert f(ones(2), ones(2)).shape == (2,)
    f["y"] = ones(2)
    assert f(ones(2)).shape == (2,)


def test_a_given_without_names_is_checked_by_the_ops():
    x, y, i = named("batch", 3), named("batch"), T.lscalar()
    data = symdnn.shared(ones(10, 3))
    f = symdnn.function([i, y], x.sum(1) * y, givens={x: data[:i]})
    assert f(4, ones(4)).shape == (4,)
    with pytest.raises(ShapeMismatch, match=r"shapes \[\(4,\), \(5,\)\]"):
        f(4, ones(5))


def test_sequences_of_one_name_are_as_long():
    x, y = named("time", "batch", name="x"), named("time", "batch", name="y")
    sums, _ = symdnn.scan(lambda a, b, s: s + a * b, [x, y], [T.zeros_like(x[0])])
    f = symdnn.function([x, y], [sums[-1], *T.grad(sums.sum(), [x])])
    assert [v.shape for v in f(ones(4, 2), ones(4, 2))] == [(2,), (4, 2)]
    with pytest.raises(ArgumentShapeMismatch, match=r"wanted one size time, got \[4, 5\]"):
        f(ones(4, 2), ones(5, 2))


def test_training_goes_through_batches_of_any_size():
    x, t = named("batch", 4, name="x"), T.tensor("int64", ("batch",), "t")
    w = symdnn.shared(np.zeros((4, 3), "float32"), "w", shape=(4, 3))
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(x.dot(w)), t).mean()
    train = symdnn.function([x, t], loss, updates=[(w, w - T.grad(loss, w))])
    plain_x, plain_t = T.fmatrix(), T.lvector()
    plain = symdnn.clone(loss, {x: plain_x, t: plain_t})
    old = symdnn.function([plain_x, plain_t], plain)
    rng = np.random.default_rng(0)
    for n in (8, 1, 8, 5, 1):
        batch = rng.normal(size=(n, 4)).astype("float32"), rng.integers(0, 3, n)
        wanted = old(*batch)
        np.testing.assert_allclose(train(*batch), wanted, rtol=1e-5)
    with pytest.raises(ArgumentShapeMismatch, match=r"input 1 \(t\) has 1 in axis 0"):
        train(rng.normal(size=(8, 4)).astype("float32"), rng.integers(0, 3, 1))


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))]
)
def test_copies_of_a_function_check_too(pair, again):
    other = again(pair)
    assert other(ones(2, 3), ones(2)).shape == (2,)
    with pytest.raises(ArgumentShapeMismatch, match="f: wanted one size batch"):
        other(ones(2, 3), ones(1))


def test_expressions_of_one_value_are_checked_by_eval():
    x, y = named("n"), named("n")
    assert (x + y).eval({x: ones(2), y: ones(2)}).shape == (2,)
    with pytest.raises(ArgumentShapeMismatch, match="wanted one size n"):
        (x + y).eval({x: ones(2), y: ones(1)})


def test_a_known_combination_is_looked_at_once_and_few_are_remembered(monkeypatch):
    x, y = named("n"), named("n")
    sizes = NamedSizes("f", [(x, x, "x"), (y, y, "y")])
    told = []
    monkeypatch.setattr(NamedSizes, "_text", lambda *a: told.append(a) or "differ")
    for n in (*range(3000), 7):
        sizes.check({x: ones(n), y: ones(n)})
    assert not told
    assert len(sizes._seen) <= 1024
    for _ in range(2):
        with pytest.raises(ArgumentShapeMismatch, match="differ"):
            sizes.check({x: ones(2), y: ones(3)})


def test_a_function_without_a_name_in_common_has_nothing_to_check():
    x, y = named("a", 3), T.fmatrix()
    assert not symdnn.function([x, y], x + y).named
    assert symdnn.function([x, named("a", name="b")], x.sum(), on_unused_input="ignore").named


def test_a_wrong_value_is_told_as_before(pair):
    with pytest.raises(InputError, match=r"input 0 \(x\): wanted 2 dimension"):
        pair(ones(3), ones(3))
    with pytest.raises(ArgumentShapeMismatch, match=r"dimension 1 is 3 in float32\(batch, 3\)"):
        pair(ones(2, 4), ones(2))
