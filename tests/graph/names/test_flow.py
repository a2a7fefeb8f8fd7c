"""Names of sizes: which values have one, which clash, and the errors."""

import copy
import pickle

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Dim
from symdnn.errors import InputError, ShapeMismatch, TypeMismatch
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable
from symdnn.nn import Linear


def named(*shape, dtype="float32", name=None):
    return T.tensor(dtype, shape, name)


def names(v):
    """The names of a variable's sizes, numbers where they are known, "?" for the rest."""
    known = [str(n or "?") for n in v.type.names or [None] * v.type.ndim]
    return tuple(n if d is None else d for d, n in zip(v.type.shape, known))


# -- the names themselves ------------------------------------------------------------------------


def test_a_dim_is_its_names():
    assert Dim("n") == Dim("n")
    assert hash(Dim("n")) == hash(Dim("n"))
    assert Dim("b", "a", "b") == Dim("a", "b") != Dim("a")
    assert Dim("a", "b").agrees(Dim("b", "c"))
    assert not Dim("a").agrees(Dim("c"))
    assert (str(Dim("b", "a")), repr(Dim("b", "a"))) == ("a=b", "Dim('a', 'b')")


@pytest.mark.parametrize("given", [(), ("",), ("two words",), (3,), (None,), ("2d",)])
def test_a_name_is_an_identifier(given):
    with pytest.raises(InputError, match="Dim: wanted names such as 'batch'"):
        Dim(*given)


def test_a_type_has_names_beside_its_shape_and_equals_one_without():
    t = TensorType("float32", ("batch", 784, None))
    assert t == TensorType("float32", (Dim("batch"), 784, None))
    assert t.shape == (None, 784, None)
    assert t.names == (Dim("batch"), None, None)
    assert t == TensorType("float32", (None, 784, None))
    assert hash(t) == hash(t.with_names(None))
    assert str(t) == "float32(batch, 784, ?)"
    assert eval(repr(t)).names == t.names
    assert t.with_shape(t.shape).names is None
    assert t.with_dtype("int8").names == t.names
    assert t.with_names((Dim("a"), Dim("b"), None)).names == (Dim("a"), None, None)
    assert t.entry().names is None
    assert TensorType("int8", (2, "n")).entry().names == (Dim("n"),)


def test_a_plain_string_is_no_shape():
    with pytest.raises(InputError, match=r"wanted a sequence of sizes, got 'batch': \('batch',\)"):
        T.tensor("float32", "batch")
    with pytest.raises(InputError, match=r"wanted a sequence of sizes, got 'batch'"):
        symdnn.shared(np.ones(3), shape="batch")


def test_a_name_is_no_size_of_an_array_to_be_made():
    with pytest.raises(TypeMismatch, match=r"the name 'batch'. Use the size .* x.shape\[0\]"):
        T.zeros(("batch", 3))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))])
def test_copies_keep_names(again):
    x = named("batch", 3)
    w = symdnn.shared(np.zeros((2, 3)), shape=("batch", 3))
    for v in (x, x + 1, w):
        assert names(again(v)) == ("batch", 3)
    assert names(x.clone()) == names(w.clone()) == names(x.type()) == ("batch", 3)


def test_graphs_print_names(capsys):
    symdnn.dprint(named("batch", 3, name="x") * 2, print_type=True)
    assert capsys.readouterr().out.count("<float32(batch, 3)>") == 2


# -- where names go ------------------------------------------------------------------------------

X = named("batch", 12, name="x")
Y = named("batch", dtype="int64")
U = T.fmatrix("u")
IMAGES = named("batch", 3, 8, 8)
FILTERS = T.tensor("float32", (4, 3, 3, 3))
FOLLOWS = {
    "unary": (T.exp(X), ("batch", 12)),
    "with a number": (X + 1, ("batch", 12)),
    "an unnamed operand": (U * X, ("batch", 12)),
    "an unnamed size": (named("a", None) + named(None, "b"), ("a", "b")),
    "a row": (named("batch", "k") + T.frow(), ("batch", "k")),
    "a known size": (named("batch", "k") + named(5, None), (5, "k")),
    "a vector": (X.T + Y, (12, "batch")),
    "three operands": (T.switch(X > 0, U, X), ("batch", 12)),
    "a cast": (Y.astype("float32"), ("batch",)),
    "sum": (X.sum(1), ("batch",)),
    "sum with its axis": (X.sum(1, keepdims=True), ("batch", 1)),
    "sum of the batch": (X.sum(0), (12,)),
    "mean and variance": (X.mean(1) + X.var(1), ("batch",)),
    "argmax": (T.argmax(X, 1), ("batch",)),
    "cumsum": (T.cumsum(X, 0), ("batch", 12)),
    "sort": (T.sort(named("batch", "k"), 0), ("batch", "k")),
    "transpose": (X.T, (12, "batch")),
    "new axes": (X.dimshuffle("x", 1, 0), (1, 12, "batch")),
    "reshape of the rest": (X.reshape((-1, 3, 4)), ("batch", 3, 4)),
    "reshape by the size": (X.reshape((X.shape[0], 3, 4)), ("batch", 3, 4)),
    "reshape by another's size": (U.reshape((Y.shape[0], 12)), ("batch", 12)),
    "flatten": (IMAGES.flatten(2), ("batch", 192)),
    "all in one": (X.flatten(), ("?",)),
    "dot": (X.dot(U), ("batch", "?")),
    "dot of two names": (named("m", "k").dot(named("k", "n")), ("m", "n")),
    "batched dot": (T.batched_dot(named("b", "m", "k"), named("b", "k", 2)), ("b", "m", 2)),
    "tensordot": (T.tensordot(named("m", "k"), named("k", "n"), 1), ("m", "n")),
    "concatenation": (T.concatenate([X, X], 1), ("batch", 24)),
    "along the name": (T.concatenate([X, X], 0), ("?", 12)),
    "stack": (T.stack([X, X]), (2, "batch", 12)),
    "split": (T.split(X, [6, 6], 2, axis=1)[0], ("batch", 6)),
    "a column": (X[:, 3], ("batch",)),
    "backwards": (X[::-1], ("batch", 12)),
    "a part": (X[1:], ("?", 12)),
    "rows by labels": (T.fmatrix()[Y], ("batch", "?")),
    "set": (T.set_subtensor(X[:, 0], 1), ("batch", 12)),
    "zeros like it": (T.zeros_like(X), ("batch", 12)),
    "of its size": (T.ones((X.shape[0], 5)), ("batch", 5)),
    "one-hot": (T.eq(T.arange(5), Y.dimshuffle(0, "x")), ("batch", 5)),
    "softmax": (T.nnet.softmax(named("batch", "k")), ("batch", "k")),
    "cross-entropy": (T.nnet.categorical_crossentropy(T.nnet.softmax(X), Y), ("batch",)),
    "convolution": (T.nnet.conv2d(IMAGES, FILTERS), ("batch", 4, 6, 6)),
    "pooling": (T.signal.pool.pool_2d(IMAGES, (2, 2)), ("batch", 3, 4, 4)),
    "unbroadcast": (T.unbroadcast(T.frow() + named(1, "k"), 0), ("?", "k")),
    "declared to be 1": (T.addbroadcast(named("batch", "k"), 0), (1, "k")),
    "a layer": (Linear(12, 5)(X), ("batch", 5)),
    "random": (symdnn.tensor.random.RandomStream(1).normal(X.shape), ("batch", 12)),
}  # fmt: skip


@pytest.mark.parametrize("what", FOLLOWS)
def test_names_follow(what):
    v, wanted = FOLLOWS[what]
    assert names(v) == wanted


def test_gradients_have_the_names_of_what_they_are_taken_by():
    w = symdnn.shared(np.zeros((12, 5), "float32"), shape=(12, "classes"))
    cost = T.nnet.categorical_crossentropy(T.nnet.softmax(X.dot(w)), Y).mean()
    assert [names(g) for g in T.grad(cost, [X, w])] == [("batch", 12), (12, "classes")]
    (g,) = T.grad(T.nnet.conv2d(IMAGES, FILTERS).sum(), [IMAGES])
    assert names(g) == ("batch", 3, 8, 8)


def step(x, h, w):
    assert names(x) == ("batch", 7)
    assert names(h) == ("batch", 5)
    return T.tanh(x.dot(w) + h)


def test_a_loop_keeps_the_axis_of_its_sequence_and_those_of_a_step():
    x, m = named("time", "batch", 7), named("time", "batch")
    h, w = named("batch", 5), named(7, 5)
    states, _ = symdnn.scan(step, [x], [h], [w])
    assert names(states) == ("time", "batch", 5)
    assert names(states[-1]) == ("batch", 5)
    grads = T.grad(states.sum(), [x, h, w])
    assert [names(g) for g in grads] == [("time", "batch", 7), ("batch", 5), (7, 5)]
    masked, _ = symdnn.scan(lambda x, m: x * m.dimshuffle(0, "x"), [x, m])
    assert names(masked) == ("time", "batch", 7)
    some, _ = symdnn.scan(lambda x: x.sum(0), [T.ftensor3()], n_steps=m.shape[0])
    assert names(some) == ("time", "?")


def test_a_state_cannot_change_its_name():
    with pytest.raises(TypeMismatch, match=r"output 0.*float32\(batch,\), got float32\(time,\)"):
        symdnn.scan(lambda h: T.zeros_like(named("time")), [], [named("batch")], n_steps=2)


@pytest.mark.parametrize("inline", [False, True])
def test_names_inside_of_an_op_from_a_graph_are_its_own(inline):
    a, b = named("n"), named("n")
    op = symdnn.OpFromGraph([a, b], [a * b], inline=inline)
    x, y = named("batch"), named("batch")
    assert names(op(x, y)) == ("batch",)
    assert names(op(T.fvector(), T.fvector())) == ("?",)
    assert names(T.grad(op(x, y).sum(), x)) == ("batch",)
    with pytest.raises(ShapeMismatch, match="batch and time have different names"):
        op(x, named("time"))
    f = symdnn.function([x, y], [op(x, y), T.Rop(op(x, y), x, y) + x])
    np.testing.assert_array_equal(f([1, 2], [3, 4])[1], [10, 18])


# -- what clashes ----------------------------------------------------------------------------------

A, B = named("batch", 4), named("time", 4)
CLASHES = {
    "Add": lambda: A + B,
    "Switch": lambda: T.switch(A > 0, B, 1),
    "Clip": lambda: T.clip(A, B, 9),
    "Join": lambda: T.concatenate([A, B], 1),
    "Dot": lambda: T.dot(A.T, B),
    "BatchedDot": lambda: T.batched_dot(named("batch", 2, 3), named("time", 3, 2)),
    "MatchSizes": lambda: T.tensordot(named("batch", "k"), named("time", "k"), [[0, 1], [0, 1]]),
    "Alloc": lambda: T.alloc(A, B.shape[0], 4),
    "IncSubtensor": lambda: T.set_subtensor(A[:], B),
    "Crossentropy": lambda: T.nnet.categorical_crossentropy(A, B[:, 0].astype("int64")),
    "Linear": lambda: Linear(4, 5)(A) + Linear(4, 5)(B),
}


@pytest.mark.parametrize("op", CLASHES)
def test_two_names_clash_when_the_expression_is_written(op):
    with pytest.raises(ShapeMismatch) as info:
        CLASHES[op]()
    text = str(info.value)
    assert "batch" in text
    assert "time" in text
    assert "have different names" in text
    assert "T.specify_shape(x, sizes)" in text
    assert "symdnn.Dim('batch', 'time')" in text
    assert __file__ in [entry.path.__fspath__() for entry in info.traceback]  # the user's line


def test_a_rewrite_or_a_gradient_asks_no_name():
    both = T.specify_shape(B, (A.shape[0], None))
    cost = ((A + both) ** 2).sum() + T.log(T.nnet.softmax(both) * A).sum()
    f = symdnn.function([A, B], [cost, *T.grad(cost, [A, B])])
    ones = np.ones((3, 4), "float32")
    assert [np.shape(v) for v in f(ones, ones)] == [(), (3, 4), (3, 4)]


# -- two names of one size -------------------------------------------------------------------------


def test_a_size_declared_equal_has_both_names():
    both = T.specify_shape(B, (A.shape[0], None))
    assert names(both) == ("batch=time", 4)
    assert names(both + A) == names(B + both) == ("batch=time", 4)
    f = symdnn.function([A, B], A + both)
    assert f(np.ones((3, 4), "float32"), np.ones((3, 4), "float32")).shape == (3, 4)
    with pytest.raises(ShapeMismatch, match=r"wanted the shape \(3, 4\), got \(1, 4\)"):
        f(np.ones((3, 4), "float32"), np.ones((1, 4), "float32"))


def test_a_dim_of_two_names_joins_them_in_its_own_variables_only():
    both = TensorType("float32", (Dim("batch", "time"), 4))()
    assert names(A + both) == names(both + B) == names(A + both + B) == ("batch=time", 4)
    with pytest.raises(ShapeMismatch, match="batch and time have different names"):
        A + B


# -- what stands for a variable --------------------------------------------------------------------


def test_a_replacement_brings_its_names():
    x, y = named("batch", name="x"), named("batch", name="y")
    assert names(symdnn.clone(T.exp(x), {x: named("time")})) == ("time",)
    assert names(symdnn.clone(T.exp(x), {x: T.fvector()})) == ("?",)
    assert names(symdnn.clone(x * y, {x: T.fvector()})) == ("batch",)
    product = x * y
    with pytest.raises(ShapeMismatch, match="time and batch have different names") as info:
        symdnn.clone(product, {x: named("time")})
    assert any("product = x * y" in note for note in info.value.__notes__)


@pytest.mark.parametrize("what", ["givens", "updates"])
def test_what_stands_for_a_variable_has_no_other_name(what):
    w = symdnn.shared(np.zeros((2,), "float32"), "w", shape=("batch",))
    other: Variable = named("time")
    with pytest.raises(ShapeMismatch, match=f"{what} of w: .* other names"):
        symdnn.function([other], w * 2, **{what: {w: other}}, on_unused_input="ignore")


@pytest.mark.parametrize("mode", ["off", "warn", "raise"])
def test_names_need_no_test_values(mode):
    with symdnn.config.change_flags(compute_test_value=mode):
        x = named("batch", 3, "k")
        x.tag.test_value = np.ones((2, 3, 4), "float32")
        assert names(x.reshape((-1, 3))) == ("?", 3)
        assert names((x * x).sum(2)) == ("batch", 3)


def test_names_follow_from_sizes_without_nodes(monkeypatch):
    """Shape rules compute with symbols: a product of unknown sizes is not written as a graph."""
    x, n = named("batch", None, 4, "time"), T.lscalar("n")
    applied = []
    call = Variable.__mul__
    monkeypatch.setattr(Variable, "__mul__", lambda a, b: applied.append(b) or call(a, b))
    y = x.reshape((x.shape[0], -1, 2, x.shape[3]))
    assert names(y) == ("batch", "?", 2, "time")
    assert names(x.reshape((x.shape[0], n, n))) == ("batch", "?", "?")
    assert not applied
