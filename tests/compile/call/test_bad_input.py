"""Errors of users' mistakes: the op, the shapes, what was wanted, the user's line."""

import ast
import re

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import In
from symdnn.config import config
from symdnn.errors import (
    AssertionFailed,
    DimensionMismatch,
    DisconnectedInput,
    GraphError,
    IndexOutOfRange,
    InputError,
    MissingInputError,
    NanDetected,
    ShapeMismatch,
    TypeMismatch,
    UnusedInputError,
)
from symdnn.graph.traverse import toposort
from symdnn.ops.core.gradient_control import assert_


def whole_text(info):
    return "\n".join([str(info.value), *getattr(info.value, "__notes__", [])])


def line_of(text):
    """The number of the line of this file that contains ``text`` (and is not this call)."""
    with open(__file__, encoding="utf-8") as lines:
        found = [i for i, line in enumerate(lines, 1) if text in line and "line_of" not in line]
    assert len(found) == 1, found
    return found[0]


# -- arguments -------------------------------------------------------------------------------------


@pytest.fixture
def f():
    return symdnn.function([T.fmatrix("x"), T.ivector("t")], [], name="f", on_unused_input="ignore")


X, L = np.zeros((2, 3), "float32"), np.zeros(2, "int32")


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "message"),
    [
        ((X,), {}, InputError, r"f: no value for t; it takes x, t"),
        ((), {}, InputError, r"f: no value for x, t"),
        ((X, L, 1), {}, InputError, r"f takes 2 argument\(s\) \(x, t\), got 3"),
        ((X,), {"y": L}, InputError, r"f has no input named 'y'; it takes x, t"),
        ((X, L), {"t": L}, InputError, r"f got several values for 't'"),
        ((X[0], L), {}, DimensionMismatch,
         r"f: input 0 \(x\): wanted 2 dimension\(s\) \(float32\(\?, \?\)\), got float32\(3,\)"),
        ((X.astype("float64"), L), {}, InputError,
         r"input 0 \(x\): wanted float32.*got float64\(2, 3\), which would lose precision"),
        ((X, L.astype("int64")), {}, InputError, r"input 1 \(t\): wanted int32.*got int64"),
        ((X, [0.5, 1.0]), {}, InputError, r"input 1 \(t\): wanted int32.*got list"),
        ((X, [np.nan, 1.0]), {}, InputError, r"with NaN or infinities, which no integer can hold"),
        ((X, ["a"]), {}, InputError, r"input 1 \(t\): wanted int32"),
        ((X, None), {}, InputError, r"input 1 \(t\): wanted int32.*got NoneType None"),
        ((X, T.ivector("z")), {}, InputError, r"got the symbolic variable z"),
        (([[1, 2], [3]], L), {}, InputError, r"input 0 \(x\): wanted float32"),
    ],
)  # fmt: skip
def test_arguments(f, args, kwargs, error, message):
    with pytest.raises(error, match=message):
        f(*args, **kwargs)
    assert issubclass(error, TypeError | ValueError)


@pytest.mark.parametrize("wrong", [(np.array([1, 2]), X), (2, X[0]), (2, X[None])])
def test_arguments_that_sizes_are_read_of_are_checked_first(wrong):
    n, x = T.lscalar("n"), T.fmatrix("x")
    f = symdnn.function([n, x], x.reshape((n, x.shape[0] * x.shape[1] // n)) * 2, name="f")
    for _ in range(3):
        assert f(2, X).shape == (2, 3)
    for kwargs in ({}, {"n": wrong[0], "x": wrong[1]}):
        with pytest.raises(DimensionMismatch, match=r"f: input \d \([nx]\): wanted \d dimension"):
            f(*(() if kwargs else wrong), **kwargs)


@pytest.mark.parametrize(
    ("dtype", "number"),
    [("int64", 2**63), ("int8", 255), ("uint64", -1), ("uint8", -256), ("int64", [2**64 - 1])],
)
def test_integers_that_would_wrap_around_are_refused(dtype, number):
    v = T.TensorType(dtype, (None,) * np.ndim(number))("v")
    f = symdnn.function([v], v + 0)
    assert f(np.ones_like(number, dtype)).tolist() == np.ones_like(number).tolist()
    with pytest.raises(InputError, match="would lose precision"):
        f(number)


def test_nan_labels_are_refused_even_where_loss_of_precision_is_allowed():
    t = T.ivector("t")
    f = symdnn.function([t], t * 2, allow_input_downcast=True)
    assert f(np.array([1.0, 2.0])).tolist() == [2, 4]
    with pytest.raises(InputError, match="NaN or infinities, which no integer can hold"):
        f(np.array([1.0, np.nan]))


def test_static_dimensions_of_arguments():
    x = T.TensorType("float64", (3, 1))("x")
    f = symdnn.function([x], x * 2)
    assert f(np.ones((3, 1))).shape == (3, 1)
    with pytest.raises(DimensionMismatch, match=r"dimension 0 is 3 in .*got shape \(2, 1\)"):
        f(np.ones((2, 1)))
    with pytest.raises(DimensionMismatch, match=r"dimension 1 is 1 \(it broadcasts"):
        f(np.ones((3, 2)))


# -- declarations: all of it is found when the function is made ------------------------------------


def test_inputs_that_are_none():
    x = T.dscalar("x")
    with pytest.raises(InputError, match="inputs must be a list of variables"):
        symdnn.function(x, x)
    with pytest.raises(InputError, match="an input must be a variable or In, got 3"):
        symdnn.function([3], x)
    with pytest.raises(GraphError, match="x is an input twice"):
        symdnn.function([x, x], x)
    w = symdnn.shared(1.0, "w")
    with pytest.raises(InputError, match=r"w is shared, so it cannot be an input.*givens"):
        symdnn.function([w], w)
    with pytest.raises(InputError, match="the constant 2.5 cannot be an input"):
        symdnn.function([T.constant(2.5, dtype="float64")], x)


def test_a_missing_input():
    x, y = T.dvector("x"), T.dvector("y")
    with pytest.raises(MissingInputError, match=r"the graph needs y of type float64\(\?,\), which"):
        symdnn.function([x], x + y)


def test_an_unused_input():
    x, y = T.dvector("x"), T.dvector("y")
    message = r"no output or update depends on the input y of type float64\(\?,\)"
    with pytest.raises(UnusedInputError, match=message + ".*on_unused_input='ignore'"):
        symdnn.function([x, y], x)
    with pytest.warns(UserWarning, match=message):
        symdnn.function([x, y], x, on_unused_input="warn")
    symdnn.function([x, y], x, on_unused_input="ignore")
    with config.change_flags(on_unused_input="ignore"):
        symdnn.function([x, y], x)
    with pytest.raises(ValueError, match="on_unused_input='no': wanted raise, warn or ignore"):
        symdnn.function([x, y], x, on_unused_input="no")
    w = symdnn.shared(np.ones(2))
    symdnn.function([x, y], x, updates=[(w, y)])


def test_two_variables_of_one_name():
    """A program that makes its input a second time."""
    x = T.dvector("x")
    with pytest.raises(UnusedInputError, match="they depend on another variable x. Make one"):
        symdnn.function([T.dvector("x")], x + 1)
    with pytest.raises(MissingInputError, match="The input x is another variable: make one"):
        symdnn.function([T.dvector("x")], x + 1, on_unused_input="ignore")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"value": np.zeros((2, 2))}, DimensionMismatch, r"In\(v\): value: wanted 1 dimension"),
        ({"value": "a"}, InputError, r"In\(v\): value: wanted float64"),
        ({"update": 1.0}, InputError, "an update needs a value to start from"),
        ({"implicit": True}, InputError, "an implicit input needs a value"),
    ],
)
def test_in(options, error, message):
    v = T.dvector("v")
    with pytest.raises(error, match=message):
        symdnn.function([In(v, **options)], v)


def test_in_of_another_shared_type():
    v, w = T.dvector("v"), symdnn.shared(np.zeros((2, 2)), "w")
    with pytest.raises(
        TypeMismatch, match=r"In\(v\): wanted float64\(\?,\), got float64\(\?, \?\)"
    ):
        symdnn.function([In(v, value=w)], v)
    with pytest.raises(InputError, match="In: wanted a variable, got a int"):
        In(3)


# -- givens and updates ----------------------------------------------------------------------------


def test_a_loop_in_givens():
    x, y, z = T.dscalars("x", "y", "z")
    with pytest.raises(GraphError, match=r"givens: x, y depend on each other \(a loop\)"):
        symdnn.function([z], x + z, givens={x: y * 2, y: x + 1})
    # In its own replacement a variable is itself, as in Theano.
    assert symdnn.function([x, z], x + z, givens={x: x * 2})(3, 1) == 7


def test_givens_of_another_type():
    x, y = T.dvector("x"), T.dmatrix("y")
    with pytest.raises(TypeMismatch, match=r"givens of x: wanted float64\(\?,\), got y of type"):
        symdnn.function([y], x, givens={x: y})
    with pytest.raises(GraphError, match="givens: x is given twice"):
        symdnn.function([], x, givens=[(x, np.ones(2)), (x, np.ones(2))])
    with pytest.raises(TypeMismatch, match="givens: wanted a variable as key, got str"):
        symdnn.function([], x, givens={"x": np.ones(2)})
    with pytest.raises(TypeMismatch, match="wanted a dict or a list of"):
        symdnn.function([], x, givens=[x])


def test_an_update_of_something_not_shared():
    x = T.dscalar("x")
    with pytest.raises(TypeMismatch, match=r"a shared variable as key, got x \(Variable\).*shared"):
        symdnn.function([], None, updates=[(x, x + 1)])
    w = symdnn.shared(1.0, "w")
    with pytest.raises(GraphError, match="updates: w is updated twice"):
        symdnn.function([], None, updates=[(w, w + 1), (w, w + 2)])
    with pytest.raises(TypeMismatch, match="wanted a dict or a list of"):
        symdnn.function([], None, updates=[w])


def test_updates_of_another_type():
    w = symdnn.shared(np.zeros((2, 3), "float32"), "w")
    x = T.dmatrix("x")
    message = r"updates of w: wanted float32\(\?, \?\), got .* of type "
    with pytest.raises(TypeMismatch, match=message + r"float64\(\?, \?\).*Cast it: .*astype"):
        symdnn.function([x], None, updates=[(w, w + x)])
    with pytest.raises(TypeMismatch, match=message + r"float32\(\?,\).*Reshape or index it"):
        symdnn.function([], None, updates=[(w, w.sum(axis=0))])
    fixed = symdnn.shared(np.zeros((2, 3)), "fixed", shape=(2, 3))
    with pytest.raises(
        TypeMismatch, match=r"updates of fixed: wanted float64\(2, 3\), got .*\(1, 3"
    ):
        symdnn.function([], None, updates=[(fixed, fixed.sum(axis=0, keepdims=True))])


def test_no_default_updates_of_another_kind():
    w = symdnn.shared(1.0, "w")
    with pytest.raises(TypeMismatch, match="no_default_updates: wanted a bool or a list"):
        symdnn.function([], w, no_default_updates=w)


# -- gradients -------------------------------------------------------------------------------------


def test_gradients_that_do_not_exist():
    x, i = T.dvector("x"), T.lvector("i")
    with pytest.raises(TypeError, match=r"scalar"):
        T.grad(x * 2, x)
    with pytest.raises(DisconnectedInput, match=r"i \(of type int64\(\?,\)\)"):
        T.grad((x[i]).sum(), i)
    with pytest.raises(DisconnectedInput, match="of type float64"):
        T.grad(i.sum(), x)


# -- shapes and values, found when it runs ---------------------------------------------------------


def test_shapes_that_disagree_are_refused_with_the_users_line():
    x, y = T.dmatrix("x"), T.dmatrix("y")
    z = x + y  # here they meet
    f = symdnn.function([x, y], T.exp(z).sum())
    with pytest.raises(ShapeMismatch) as info:
        f(np.ones((2, 3)), np.ones((2, 4)))
    text = whole_text(info)
    assert "wanted equal sizes in dimension 1" in text
    assert "of which Add" in text
    assert "(2, 3)" in text
    assert "(2, 4)" in text
    assert f'File "{__file__}", line {line_of("# here they meet")}' in text


@pytest.mark.parametrize("optimizer", ["None", "fast_run"])
def test_an_unknown_dimension_that_turns_out_to_be_1(optimizer):
    x, w = T.dmatrix("x"), symdnn.shared(np.ones((1, 3)), "w")
    f = symdnn.function([x], x * w, mode=symdnn.Mode(optimizer=optimizer))
    with pytest.raises(ShapeMismatch) as info:
        f(np.ones((2, 3)))
    text = whole_text(info)
    assert "T.addbroadcast(x, 0)" in text
    assert "T.patternbroadcast" in text
    assert "broadcastable=" in text
    assert __file__ in text
    right = symdnn.function([x], x * T.addbroadcast(w, 0), mode=symdnn.Mode(optimizer=optimizer))
    assert right(np.ones((2, 3))).shape == (2, 3)


def test_products_that_disagree():
    x, w = T.dmatrix("x"), symdnn.shared(np.ones((4, 2)), "w")
    f = symdnn.function([x], x.dot(w))
    with pytest.raises(ShapeMismatch, match=r"Dot") as info:
        f(np.ones((2, 3)))
    assert "float64(2, 3), float64(4, 2)" in whole_text(info)


def test_an_index_out_of_range():
    x, i, v = T.dvector("x"), T.lscalar("i"), T.lvector("v")
    f = symdnn.function([x, i], x[i] * 2)
    g = symdnn.function([x, v], x[v] * 2)
    for call in (lambda: f(np.ones(3), 5), lambda: g(np.ones(3), [0, -4])):
        with pytest.raises(IndexOutOfRange) as info:
            call()
        assert __file__ in whole_text(info)
        assert "3" in str(info.value)


@pytest.mark.parametrize("optimizer", ["None", "fast_run"])
@pytest.mark.parametrize("label", [3, -1])
def test_a_label_out_of_range(optimizer, label):
    x, t = T.dmatrix("x"), T.lvector("t")
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(x), t).mean()
    w = symdnn.shared(0.0, "w")
    mode = symdnn.Mode(optimizer=optimizer)
    f = symdnn.function([x, t], loss, updates=[(w, w + loss)], mode=mode)
    with pytest.raises(IndexOutOfRange, match=rf"{label}.*3|3.*{label}") as info:
        f(np.zeros((2, 3)), [0, label])
    assert __file__ in whole_text(info)
    assert w.get_value() == 0


def test_labels_that_are_floats():
    x, t = T.dmatrix("x"), T.dvector("t")
    with pytest.raises(TypeMismatch, match=r"wanted .*integer.*float64\(\?,\)"):
        T.nnet.categorical_crossentropy(T.nnet.softmax(x), t)


def test_a_division_of_integers_by_zero_and_such_give_no_warnings():
    x = T.lvector("x")
    f = symdnn.function([x], [x // 0, T.log(x - 1.0), 1 / (x - x)])
    f([1, 2])


# -- failing steps ---------------------------------------------------------------------------------


def failing(mode):
    x = T.dmatrix("x")
    y = T.exp(x) * 2
    checked = assert_(y, T.lt(y.max(), 100), message="too large")  # the user's check
    w = symdnn.shared(np.zeros(3), "w")
    f = symdnn.function([x], checked.sum(), updates=[(w, w + checked.sum(axis=0))], mode=mode)
    return f, w


@pytest.mark.cpu
@pytest.mark.parametrize("optimizer", ["None", "fast_compile", "fast_run"])
def test_a_failing_node_is_described_and_nothing_is_updated(optimizer):
    f, w = failing(symdnn.Mode(optimizer=optimizer))
    f(np.zeros((2, 3)))
    before = w.get_value()
    with pytest.raises(AssertionFailed, match="too large") as info:
        f(np.full((4, 3), 50.0))
    note = "".join(info.value.__notes__)
    assert "While running Assert" in note
    assert "float64(4, 3)" in note
    assert f'File "{__file__}", line {line_of("# the user" + chr(39) + "s check")}' in note
    np.testing.assert_array_equal(w.get_value(), before)


@pytest.mark.cpu
def test_high_verbosity_shows_graph_strides_and_small_values():
    f, _ = failing(symdnn.Mode(optimizer="None"))
    high = config.change_flags(exception_verbosity="high")
    with high, pytest.raises(AssertionFailed) as info:
        f(np.full((4, 3), 50.0))
    note = "".join(info.value.__notes__)
    assert re.search(r"0: .*float64\(4, 3\), strides \(24, 8\)", note)
    assert "value False" in note
    assert re.search(r"Its graph:\n +Assert.*\n +Mul.*\n +Exp", note)


def test_high_verbosity_shows_a_check_that_has_no_result():
    x = T.dmatrix("x")
    high = config.change_flags(exception_verbosity="high")
    f = symdnn.function([x], T.log(x).sum(), mode="NanGuardMode")
    with high, pytest.raises(NanDetected, match="Log contains NaN in 2 of 2 elements"):
        f(-np.ones((1, 2)))


NEVER_COMPUTED = {
    "sum": lambda x, w, b: (T.tanh(T.dot(x, w)) + b).sum(),
    "product": lambda x, w, b: T.dot(T.exp(x), b),
    "join": lambda x, w, b: T.join(0, T.dot(x, w), b.dimshuffle("x", 0)),
    "convolution": lambda x, w, b: T.nnet.conv2d(
        T.exp(x).dimshuffle("x", "x", 0, 1), w.dimshuffle("x", "x", 0, 1)[:, :, :, :1] + b[0] * 0
    ),
    "reshape": lambda x, w, b: (x * 2).reshape((b.shape[0], 2)),
}


@pytest.mark.parametrize("optimizer", ["fast_run", "None"])
@pytest.mark.parametrize("kind", NEVER_COMPUTED)
def test_high_verbosity_shows_no_value_that_was_never_there(kind, optimizer):
    x = T.dmatrix("x")
    w, b = symdnn.shared(np.full((3, 4), 2.0)), symdnn.shared(np.full(5, 3.0))
    f = symdnn.function([x], NEVER_COMPUTED[kind](x, w, b), mode=symdnn.Mode(optimizer=optimizer))
    high = config.change_flags(exception_verbosity="high")
    a = np.full((2, 3), 0.5)
    with high, pytest.raises(ValueError, match=r".") as info:
        f(a)
    shown = re.findall(r"value (\S.*)", "".join(info.value.__notes__))
    known = [a, w.get_value(), b.get_value(), a @ w.get_value(), np.exp(a), 2 * a, *range(6), -1, 0]
    values = [np.asarray(ast.literal_eval(text)) for text in shown]
    known = [np.asarray(k).ravel() for k in known]
    for v in values:
        assert any(np.isin(np.round(v, 6), np.round(k, 6)).all() for k in known), v


def test_updates_are_atomic_when_a_later_one_does_not_fit():
    n = T.lscalar("n")
    a = symdnn.shared(np.zeros(2), "a")
    b = symdnn.shared(np.zeros(2), "b", shape=(2,))
    grown = T.ones((n,), dtype="float64")
    f = symdnn.function([n], None, updates=[(a, a + 1), (b, grown)])
    f(2)
    with pytest.raises(DimensionMismatch):
        f(3)
    assert a.get_value().tolist() == [1, 1]
    assert b.get_value().tolist() == [1, 1]


@pytest.mark.cpu
def test_updates_are_atomic_when_a_later_segment_fails():
    x, i = T.dvector("x"), T.lscalar("i")
    a, b = symdnn.shared(0.0, "a"), symdnn.shared(0.0, "b")
    kept = x[T.gt(x, 0).nonzero()[0]]
    f = symdnn.function([x, i], None, updates=[(a, a + x.sum()), (b, kept[i])])
    f([1.0, 2.0], 1)
    with pytest.raises(IndexOutOfRange):
        f([1.0, 2.0], 2)
    assert (a.get_value(), b.get_value()) == (3, 2)


@pytest.mark.parametrize("optimizer", ["fast_compile", "fast_run"])
def test_every_node_of_a_rewritten_graph_has_a_line_of_this_file(optimizer):
    x, t = T.dtensor4("x"), T.lvector("t")
    w = symdnn.shared(np.zeros((2, 1, 3, 3)), "w")
    v = symdnn.shared(np.zeros((8, 3)), "v")
    h = T.nnet.relu(T.signal.pool.pool_2d(T.nnet.conv2d(x, w), (2, 2), ignore_border=True))
    y = T.nnet.softmax(h.flatten(2).dot(v))
    loss = -T.log(y)[T.arange(t.shape[0]), t].mean() + (v**2).sum()
    updates = [(p, p - 0.1 * T.grad(loss, p)) for p in (w, v)]
    f = symdnn.function([x, t], loss, updates=updates, mode=symdnn.Mode(optimizer=optimizer))
    nodes = toposort(f.fgraph.outputs)
    assert len(nodes) > 20
    for node in nodes:
        files = [file for file, _, _ in node.origin.lines]
        assert __file__ in files, node
    f(np.ones((2, 1, 6, 6)), [0, 1])


def test_values_of_shared_variables():
    w = symdnn.shared(np.zeros((2, 3), "float32"), "w")
    with pytest.raises(InputError, match=r"set_value of w: wanted float32.*got float64\(2, 3\)"):
        w.set_value(np.zeros((2, 3)))
    with pytest.raises(DimensionMismatch, match="set_value of w: wanted 2 dimension"):
        w.set_value(np.zeros(2, "float32"))
    with pytest.raises(InputError, match="shared: wanted a value, got the symbolic variable w"):
        symdnn.shared(w)


@pytest.mark.parametrize("values", [np.zeros((2, 2)), 3.0, [1.0, 2.0]])
def test_values_of_eval_are_a_dict(values):
    x = T.dvector("x")
    with pytest.raises(TypeMismatch, match="a dict"):
        (x * 2).eval(values)
