"""Programs that use scan the way Theano's users do, compiled and run; and what it refuses."""

import pickle

import numpy as np
import pytest

from symdnn.autodiff import grad, verify_grad
from symdnn.compile.function import function
from symdnn.compile.shared import shared
from symdnn.errors import InputError, ShapeMismatch, SymdnnError, TypeMismatch
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.variable import as_variable
from symdnn.ops.array.view import unbroadcast
from symdnn.ops.control import scan_builder
from symdnn.ops.control.control import ifelse
from symdnn.ops.control.scan import Scan
from symdnn.ops.control.scan_builder import OrderedUpdates, foldl, foldr, reduce, scan, until
from symdnn.ops.core.shape import dims_of

SCALAR = TensorType("float64", ())
VECTOR = TensorType("float64", (None,))
MATRIX = TensorType("float64", (None, None))
INT = TensorType("int64", ())
RNG = np.random.default_rng(11)
tanh = operator("tanh")


def the_scan(v):
    """The Scan node above ``v``."""
    while not isinstance(v.owner.op, Scan):
        v = v.owner.inputs[0]
    return v.owner


# -- idioms ---------------------------------------------------------------------------------------


def test_power():
    a, k = VECTOR("a"), INT("k")
    result, updates = scan(
        fn=lambda prior, a: prior * a, outputs_info=a.ones_like(), non_sequences=a, n_steps=k
    )
    f = function([a, k], result[-1], updates=updates)
    np.testing.assert_allclose(f(np.arange(4.0), 3), np.arange(4.0) ** 3)
    assert updates == {}


def test_polynomial_without_recurrence():
    coefficients, x = VECTOR("c"), SCALAR("x")
    powers = operator("arange")(coefficients.shape[0])
    terms, _ = scan(lambda c, p, x: c * x**p, [coefficients, powers], None, x)
    f = function([coefficients, x], terms.sum())
    np.testing.assert_allclose(f(np.array([1.0, 0.0, 2.0]), 3.0), 19)


def test_recurrence_with_closures_over_shared_variables():
    w = shared(RNG.standard_normal((2, 2)), "w")
    b = shared(RNG.standard_normal(2), "b")
    x = MATRIX("x")
    h, _ = scan(lambda xt, h: tanh(xt + h.dot(w) + b), x, np.zeros(2))
    cost = (h**2).sum()
    f = function([x], [h, *grad(cost, [w, b])])
    values = RNG.standard_normal((5, 2))
    expected, state = [], np.zeros(2)
    for xt in values:
        state = np.tanh(xt + state @ w.get_value() + b.get_value())
        expected.append(state)
    got, dw, db = f(values)
    np.testing.assert_allclose(got, expected)
    assert dw.shape == (2, 2)
    assert db.shape == (2,)


def test_training_through_a_scan():
    w = shared(np.zeros(3), "w")
    x, t = MATRIX("x"), VECTOR("t")
    y, _ = scan(lambda row, w: row.dot(w), x, non_sequences=w)
    cost = ((y - t) ** 2).mean()
    step = function([x, t], cost, updates=[(w, w - 0.3 * grad(cost, w))])
    data = RNG.standard_normal((30, 3))
    target = data @ np.array([1.0, -2.0, 0.5])
    costs = [step(data, target) for _ in range(60)]
    assert costs[-1] < 1e-3 * costs[0]


def test_backwards():
    x = VECTOR("x")
    sums, _ = scan(lambda xt, s: s + xt, x, np.float64(0), go_backwards=True)
    np.testing.assert_allclose(function([x], sums)(np.arange(4.0)), np.cumsum(np.arange(4.0)[::-1]))


def test_backwards_with_fewer_steps_starts_at_the_end():
    x = VECTOR("x")
    seen, _ = scan(lambda xt: xt * 1, x, n_steps=2, go_backwards=True)
    np.testing.assert_allclose(function([x], seen)(np.arange(5.0)), [4, 3])


def test_taps_of_sequences_and_outputs():
    u, init = VECTOR("u"), VECTOR("init")

    def step(before, now, last, oldest):
        return before + 2 * now + 3 * last + 4 * oldest

    y, _ = scan(step, dict(input=u, taps=[-2, 0]), dict(initial=init, taps=[-1, -3]))
    f = function([u, init], y)
    values, history = RNG.standard_normal(6), list(RNG.standard_normal(3))
    got = f(values, np.array(history))
    for t in range(4):
        history.append(values[t] + 2 * values[t + 2] + 3 * history[-1] + 4 * history[-3])
    np.testing.assert_allclose(got, history[3:])


def test_until_ends_after_its_step():
    limit = INT("limit")

    def step(power, limit):
        return power * 2, until(power * 2 > limit)

    values, _ = scan(step, outputs_info=np.int64(1), non_sequences=limit, n_steps=1024)
    f = function([limit], values)
    np.testing.assert_array_equal(f(45), [2, 4, 8, 16, 32, 64])
    np.testing.assert_array_equal(f(1), [2])
    assert len(function([limit], scan(step, None, np.int64(1), limit, n_steps=3)[0])(45)) == 3


def test_until_may_need_more_room_than_at_first():
    n = INT("n")
    values, _ = scan(lambda k, n: (k + 1, until(k >= n)), None, np.int64(0), n, n_steps=10**9)
    assert len(function([n], values)(300)) == 301


def test_updates_inside_of_the_loop():
    counter = shared(np.int64(5), "counter")
    x = VECTOR("x")
    seen, updates = scan(lambda xt: (xt * counter, {counter: counter + 1}), x)
    updates[counter] = updates[counter] * 10  # programs change and add to them
    f = function([x], seen, updates=updates)
    np.testing.assert_allclose(f(np.ones(3)), [5, 6, 7])
    assert counter.get_value() == 80


def test_updates_alone():
    counter = shared(np.int64(0), "counter")
    outputs, updates = scan(lambda: {counter: counter + 2}, n_steps=4)
    assert outputs is None
    function([], [], updates=updates)()
    assert counter.get_value() == 8


def test_random_numbers_differ_from_step_to_step_and_call_to_call():
    random_stream = pytest.importorskip("symdnn.ops.random.random_stream")
    stream = random_stream.RandomStream(7)
    draws, updates = scan(lambda: stream.uniform(size=(2,)), n_steps=3)
    f = function([], draws, updates=updates)
    first, second = f(), f()
    assert len(np.unique(np.concatenate([first, second]))) == 12


def test_a_random_mask_given_as_non_sequence_is_one_mask():
    random_stream = pytest.importorskip("symdnn.ops.random.random_stream")
    mask = random_stream.RandomStream(7).uniform(size=(2,))
    x = MATRIX("x")
    masked, updates = scan(lambda xt, m: xt * m, x, None, mask)
    assert updates == {}
    got = function([x], masked)(np.ones((3, 2)))
    np.testing.assert_array_equal(got, np.broadcast_to(got[0], (3, 2)))


def test_gradient_through_random_steps_sees_the_same_numbers():
    random_stream = pytest.importorskip("symdnn.ops.random.random_stream")
    stream = random_stream.RandomStream(3)
    x = SCALAR("x")
    y, updates = scan(lambda s: s * stream.uniform(size=(), dtype="float64"), None, x, n_steps=4)
    f = function([x], [y[-1], grad(y[-1], x)], updates=updates)
    value, slope = f(2.0)
    np.testing.assert_allclose(slope, value / 2)


def test_map_reduce_folds():
    x = VECTOR("x")
    squares, _ = scan_builder.map(lambda v: v * v, x)
    total, _ = reduce(lambda v, s: s + v, x, np.float64(0))
    left, _ = foldl(lambda v, s: s * 2 + v, x, np.float64(0))
    right, _ = foldr(lambda v, s: s * 2 + v, x, np.float64(0))
    got = function([x], [squares, total, left, right])(np.array([1.0, 2.0, 3.0]))
    for value, expected in zip(got, [[1, 4, 9], 6, 11, 17], strict=True):
        np.testing.assert_allclose(value, expected)


def test_reduce_of_two():
    x = VECTOR("x")
    (total, product), _ = reduce(lambda v, s, p: [s + v, p * v], x, [np.float64(0), np.float64(1)])
    got = function([x], [total, product])(np.array([2.0, 3.0, 4.0]))
    np.testing.assert_allclose(got, [9, 24])


def test_nested_scans_with_gradient():
    x = MATRIX("x")

    def outer(row, decay):
        inner, _ = scan(lambda v, s: s * decay + v, row, decay * 0)
        return inner[-1]

    decay = SCALAR("decay")
    y, _ = scan(outer, x, None, decay)
    f = function([x, decay], [y, grad(y.sum(), decay)])
    values = RNG.standard_normal((3, 4))
    weights = 0.5 ** np.arange(4)[::-1]
    slopes = np.arange(4)[::-1] * 0.5 ** (np.arange(4)[::-1] - 1.0)
    got, slope = f(values, 0.5)
    np.testing.assert_allclose(got, values @ weights)
    np.testing.assert_allclose(slope, (values @ slopes).sum())


def test_a_lazy_choice_inside():
    x = VECTOR("x")
    y, _ = scan(lambda v: ifelse(v > 0, v * 2, v * -3), x)
    np.testing.assert_allclose(function([x], y)(np.array([1.0, -1.0])), [2, 3])


def test_a_scan_inside_of_a_lazy_choice():
    x, which = VECTOR("x"), INT("which")
    sums, _ = scan(lambda v, s: s + v, x, np.float64(0))
    f = function([x, which], ifelse(which, sums[-1], x[0]))
    assert f(np.arange(4.0), 1) == 6
    assert f(np.arange(4.0), 0) == 0


def test_shapes_that_change_from_step_to_step_inside():
    n = INT("n")
    y, _ = scan(lambda k: operator("arange")(k + 1).sum(), operator("arange")(n))
    np.testing.assert_array_equal(function([n], y)(5), [0, 1, 3, 6, 10])


def test_sizes_from_outside():
    x, n = VECTOR("x"), INT("n")
    y, _ = scan(lambda v, n: operator("arange")(n).astype("float64") * v, x, None, n)
    f = function([x, n], [y, y.shape])
    got, shape = f(np.array([1.0, 2.0]), 3)
    np.testing.assert_array_equal(got, [[0, 1, 2], [0, 2, 4]])
    assert shape.tolist() == [2, 3]


def test_a_matrix_recurrence_uses_the_shortest_sequence():
    x, y = VECTOR("x"), VECTOR("y")
    products, _ = scan(lambda a, b: a * b, [x, y])
    np.testing.assert_allclose(
        function([x, y], products)(np.arange(5.0), np.arange(3.0)), [0, 1, 4]
    )


def test_no_step_gives_empty_results():
    x, w = MATRIX("x"), MATRIX("w")
    h, _ = scan(lambda xt, w: xt.dot(w), x, None, w)
    assert function([x, w], h)(np.ones((0, 2)), np.ones((2, 3))).shape == (0, 3)
    s, n = SCALAR("s"), INT("n")
    values, _ = scan(lambda v: v * 2, None, s, n_steps=n)
    f = function([s, n], [values, grad(values.sum(), s)])
    assert f(3.0, 0)[0].shape == (0,)
    assert f(3.0, 0)[1] == 0
    assert f(3.0, 2)[1] == 6


def test_truncated_gradient_goes_back_so_many_steps():
    s, x = SCALAR("s"), VECTOR("x")

    def slopes(truncate):
        h, _ = scan(lambda xt, h: h * 2 + xt, x, s, truncate_gradient=truncate)
        slopes = grad(h[-1], [s, x])
        return function([s, x], slopes, on_unused_input="ignore")(1.0, np.ones(4))

    whole, by_x = slopes(-1)
    assert whole == 16
    np.testing.assert_allclose(by_x, [8, 4, 2, 1])
    cut, by_x = slopes(2)
    assert cut == 0
    np.testing.assert_allclose(by_x, [0, 0, 2, 1])
    enough, by_x = slopes(4)
    assert enough == 16


def test_gradient_by_an_initial_value_with_taps_and_last_value():
    def build(init, w):
        y, _ = scan(
            lambda a, b, w: a * w + b, None, dict(initial=init, taps=[-1, -2]), w, n_steps=3
        )
        return y[-1] * y[0]

    verify_grad(build, [RNG.standard_normal((2, 3)), RNG.standard_normal(3)])


def test_second_gradient_through_function():
    w = SCALAR("w")
    y, _ = scan(lambda s, w: tanh(s * w), None, w.ones_like(), w, n_steps=3)
    first = grad(y[-1], w)
    f = function([w], [first, grad(first, w)])
    step = 1e-5
    slope = (f(0.7 + step)[0] - f(0.7 - step)[0]) / (2 * step)
    np.testing.assert_allclose(f(0.7)[1], slope, rtol=1e-6)


def test_output_that_is_an_input_of_the_step():
    x, c = VECTOR("x"), SCALAR("c")
    (same, held), _ = scan(lambda v, c: [v, c], x, None, c)
    got = function([x, c], [same, held])(np.arange(3.0), 7.0)
    np.testing.assert_array_equal(got[0], [0, 1, 2])
    np.testing.assert_array_equal(got[1], [7, 7, 7])


def test_results_own_their_memory():
    s = VECTOR("s")
    y, _ = scan(lambda v: v, None, s, n_steps=2)
    f = function([s], [y, y[-1]])
    given = np.ones(2)
    got = f(given)
    got[0][:] = 5
    got[1][:] = 6
    np.testing.assert_array_equal(f(given)[0], np.ones((2, 2)))
    np.testing.assert_array_equal(given, 1)


def test_python_numbers_take_the_dtype_of_the_result():
    x = VECTOR("x")
    for first in (0, 0.0, as_variable(0), as_variable(0.0)):
        sums, _ = scan(lambda v, s: 1 * s + v, x, first)
        assert sums.type.dtype == "float64"
        np.testing.assert_allclose(function([x], sums)(np.ones(3)), [1, 2, 3])


def test_static_sizes_that_the_step_forgets():
    x = MATRIX("x")
    h, _ = scan(lambda xt, h: h + xt, x, np.zeros(3))
    np.testing.assert_allclose(function([x], h)(np.ones((2, 3)))[-1], [2, 2, 2])


def test_return_list():
    x = VECTOR("x")
    assert isinstance(scan(lambda v: v + 1, x, return_list=True)[0], list)
    assert isinstance(scan(lambda v: [v + 1, v + 2], x)[0], list)
    assert isinstance(scan(lambda v: [v + 1], x)[0], type(x))


def test_ordered_updates_add():
    a, b = shared(1.0), shared(2.0)
    first, second = OrderedUpdates({a: a + 1}), OrderedUpdates({b: b + 1})
    assert list(first + second) == [a, b]
    with pytest.raises(KeyError, match="two different updates"):
        first + OrderedUpdates({a: a + 2})


# -- what a scan is -------------------------------------------------------------------------------


def test_work_that_does_not_change_is_done_outside():
    x, w = MATRIX("x"), MATRIX("w")
    y, _ = scan(lambda xt: xt.dot(operator("exp")(w)), x)
    assert [type(n.op).__name__ for n in the_scan(y).op.inner.nodes] == ["Dot"]


def test_equal_scans_are_equal_ops_and_pickle():
    def build():
        x = VECTOR("x")
        return the_scan(scan(lambda v, s: tanh(s) + v, x, np.float64(0))[0]).op

    first, second = build(), build()
    assert first == second
    assert hash(first) == hash(second)
    assert pickle.loads(pickle.dumps(first)) == first
    x = VECTOR("x")
    other = the_scan(scan(lambda v, s: tanh(s) - v, x, np.float64(0))[0]).op
    assert other != first


def test_a_deep_step_pickles():
    def step(v):
        for _ in range(3000):
            v = v + 1
        return v

    op = the_scan(scan(step, VECTOR("x"))[0]).op
    assert pickle.loads(pickle.dumps(op)) == op


def test_symbolic_shapes():
    x, w = MATRIX("x"), MATRIX("w")
    (h, y), _ = scan(lambda xt, h, w: (tanh(xt.dot(w) + h), h.sum()), x, [w[0], None], w)
    node = the_scan(h)
    found = node.op.shapes(
        [v.type for v in node.inputs],
        [dims_of(v) for v in node.inputs],
        {i: node.inputs[i] for i in node.op.host_inputs},
    )
    flat = [as_variable(d) for s in found for d in s]
    f = function([x, w], flat, on_unused_input="ignore")
    assert [int(v) for v in f(np.ones((5, 2)), np.ones((2, 3)))] == [6, 3, 3, 5]
    assert y.type.ndim == 1


# -- what it refuses ------------------------------------------------------------------------------


def test_no_number_of_steps():
    with pytest.raises(SymdnnError, match="wanted n_steps or a sequence"):
        scan(lambda s: s + 1, outputs_info=np.float64(0))


def test_next_value_of_another_dtype():
    x = VECTOR("x")
    with pytest.raises(TypeMismatch, match=r"output 1.*float32.*float64.*astype\('float32'\)"):
        scan(lambda v, a, b: [a + v, b + v], x, [np.float64(0), np.float32(0)])


def test_next_value_of_another_ndim():
    x = MATRIX("x")
    with pytest.raises(TypeMismatch, match="output 0.*float64\\(\\).*float64\\(\\?,\\)"):
        scan(lambda v, s: s + v, x, np.float64(0))


def test_initial_value_that_broadcasts():
    x = TensorType("float64", (None, None, None))("x")
    with pytest.raises(TypeMismatch, match="output 0.*unbroadcast"):
        scan(lambda v, s: s + v, x, np.zeros((1, 3)))
    start = unbroadcast(as_variable(np.zeros((1, 3))), 0)
    sums, _ = scan(lambda v, s: s + v, x, start)
    assert function([x], sums)(np.ones((4, 1, 3))).shape == (4, 1, 3)


def test_too_few_initial_values():
    init = VECTOR("init")
    y, _ = scan(lambda a: a * 2, None, dict(initial=init, taps=[-3]), n_steps=2)
    with pytest.raises(ShapeMismatch, match=r"3 initial value\(s\) for state 0.*2 of them"):
        function([init], y)(np.ones(2))


def test_a_sequence_that_is_too_short():
    x = VECTOR("x")
    y, _ = scan(lambda v: v + 1, x, n_steps=5)
    with pytest.raises(ShapeMismatch, match="5"):
        function([x], y)(np.ones(3))


def test_a_negative_number_of_steps():
    n = INT("n")
    y, _ = scan(lambda s: s + 1, None, np.float64(0), n_steps=n)
    with pytest.raises(ShapeMismatch, match="not negative"):
        function([n], y)(-1)


def test_a_state_that_changes_its_shape():
    s = VECTOR("s")
    y, _ = scan(lambda v: operator("join")(0, v, v), None, s, n_steps=2)
    with pytest.raises(ShapeMismatch, match=r"state 0 of shape \(2,\) at every step, got \(4,\)"):
        function([s], y)(np.ones(2))


def test_outputs_and_outputs_info_must_match():
    with pytest.raises(SymdnnError, match="returned 2 output.*outputs_info has 1"):
        scan(lambda v: [v, v], VECTOR("x"), [None])


def test_positive_taps_of_outputs():
    with pytest.raises(TypeMismatch, match="negative taps"):
        scan(lambda v: v, None, dict(initial=np.zeros(2), taps=[1]), n_steps=2)


def test_taps_without_initial_value():
    with pytest.raises(SymdnnError, match="output 0 has taps"):
        scan(lambda v: v, None, dict(taps=[-1]), n_steps=2)


def test_a_scalar_is_no_sequence():
    with pytest.raises(TypeMismatch, match="dimension of steps"):
        scan(lambda v: v, SCALAR("x"))


def test_strict_wants_everything_declared():
    x, w = VECTOR("x"), shared(2.0, "w")
    with pytest.raises(SymdnnError, match="strict.*reads w"):
        scan(lambda v: v * w, x, strict=True)
    y, _ = scan(lambda v, w: v * w, x, None, w, strict=True)
    np.testing.assert_allclose(function([x], y)(np.ones(2)), [2, 2])


def test_updates_of_what_is_not_shared():
    x, y = VECTOR("x"), VECTOR("y")
    with pytest.raises(TypeMismatch, match="shared variable as key"):
        scan(lambda v: (v, {y: v}), x)


def test_an_error_in_a_step_names_the_line():
    x, w = MATRIX("x"), MATRIX("w")
    y, _ = scan(lambda xt, w: xt.dot(w), x, None, w)
    with pytest.raises(ShapeMismatch) as caught:
        function([x, w], y)(np.ones((2, 3)), np.ones((4, 5)))
    assert "test_scan.py" in "".join(caught.value.__notes__)


def test_a_step_of_other_arguments_is_an_error_that_lists_them():
    x, h, w = MATRIX("x"), VECTOR("h"), MATRIX("w")
    given = r"\(sequence 0, earlier value 0, non-sequence 0\)"
    for step in (lambda a, b: a, lambda a, b, c, d: a):
        with pytest.raises(InputError, match=f"scan: .*lambda> can't be called with {given}"):
            scan(step, x, h, w)
    with pytest.raises(TypeError, match="cannot make a constant of .no."):  # of the step itself
        scan(lambda a, b, c: a + "no", x, h, w)


def test_keys_of_a_scan_that_it_does_not_know_are_refused():
    x = TensorType("float32", (None,))("x")
    with pytest.raises(SymdnnError, match="sequence 0 has the key 'tap'; wanted 'input' and"):
        scan(lambda a: a, sequences={"input": x, "tap": [-1]})
    with pytest.raises(SymdnnError, match="output 0 has the key 'tap'; wanted 'initial' and"):
        scan(lambda a: a, outputs_info=[{"initial": x, "tap": [-2]}], n_steps=2)
    with pytest.raises(SymdnnError, match="sequence 1 has no 'input', got \\['taps'\\]"):
        scan(lambda a, b: a, sequences=[x, {"taps": [0]}])
    with pytest.raises(SymdnnError, match="n_steps of at least 0, got -2"):
        scan(lambda a: a, outputs_info=x, n_steps=-2)
