"""Rewrites of loops: each fires, does not change its near miss, and keeps values."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.autodiff import grad
from symdnn.compile.function import function
from symdnn.compile.program.mode import Mode
from symdnn.errors import IndexOutOfRange, ShapeMismatch
from symdnn.graph.evaluate import evaluate
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.ops.control.scan import Scan
from symdnn.ops.control.scan_builder import scan, until
from symdnn.ops.linalg.dot import Dot
from symdnn.ops.nn.conv import Conv
from symdnn.ops.nn.conv_builders import conv2d
from symdnn.ops.nn.softmax import softmax
from symdnn.opt.engine import RewriteProfile, run_rewrites
from symdnn.opt.scan import scan_push, scan_rules
from symdnn.rewriting.rewrite import Context
from tests.op_table.scan import CASES
from tests.opt.matrix import CPU

SCALAR = TensorType("float64", ())
VECTOR = TensorType("float64", (None,))
MATRIX = TensorType("float64", (None, None))
CUBE = TensorType("float64", (None, None, None))
RNG = np.random.default_rng(2)
tanh = operator("tanh")


def scans(f):
    return [n.op for n in f.fgraph.toposort() if isinstance(n.op, Scan)]


def inside(f):
    """Names of the ops in the bodies of the loops, one list per loop."""
    return [sorted(type(n.op).__name__ for n in op.inner.nodes) for op in scans(f)]


def check(inputs, outputs, *values):
    """The compiled function, its values compared with the reference of the unrewritten graph."""
    f = function(inputs, outputs, mode=Mode().excluding("fusion"))
    for got, want in zip(f(*values), evaluate(outputs, dict(zip(inputs, values))), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
    return f


def with_gradients(case):
    """A case's variables, its outputs and their gradients, and its arrays."""
    arrays = [d(np.random.default_rng(9)) for d in case.draws]
    vs = [TensorType(a.dtype.name, (None,) * a.ndim)() for a in arrays]
    out = case.build(*vs)
    outs = list(out) if isinstance(out, list | tuple) else [out]
    if case.grad:
        floats = [v for v in vs if v.type.is_float]
        cost = sum(((o * o).sum() for o in outs[1:] if o.type.is_float), (outs[0] ** 2).sum())
        outs += grad(cost, floats, disconnected_inputs="ignore")
    return vs, outs, arrays


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_values_and_gradients_stay(case):
    vs, outs, arrays = with_gradients(case)
    check(vs, outs, *arrays)


@pytest.mark.parametrize("rule", [*scan_push.RULES, *scan_rules.RULES], ids=lambda r: r.name)
def test_a_rule_leaves_the_loops_of_the_expression_as_they_are(rule):
    """Graphs that are rewritten share loops with the expression that they are copies of."""
    for case in CASES:
        vs, outs, arrays = with_gradients(case)
        values = dict(zip(vs, arrays, strict=True))
        wanted = evaluate(outs, values)
        run_rewrites([rule], Context(FunctionGraph(vs, outs), CPU), RewriteProfile())
        for x, y in zip(evaluate(outs, values), wanted, strict=True):
            np.testing.assert_array_equal(x, y)


# -- what is kept ---------------------------------------------------------------------------------


def cumulated(x, s0):
    return scan(lambda v, s: tanh(s) + v, x, s0)[0]


def test_last_value_keeps_no_history():
    x, s0 = VECTOR("x"), SCALAR("s0")
    f = check([x, s0], [cumulated(x, s0)[-1]], RNG.standard_normal(4), np.float64(1))
    assert [c.history for op in scans(f) for c in op.states] == [False]


@pytest.mark.parametrize("read", [lambda h: h[-2], lambda h: h[1:], lambda h: h.sum()])
def test_other_values_need_the_history(read):
    x, s0 = VECTOR("x"), SCALAR("s0")
    f = check([x, s0], [read(cumulated(x, s0))], RNG.standard_normal(4), np.float64(1))
    assert [c.history for op in scans(f) for c in op.states] == [True]


def test_part_of_the_last_value():
    x, s0 = MATRIX("x"), VECTOR("s0")
    last = cumulated(x, s0)[-1, 1:]
    f = check([x, s0], [last], RNG.standard_normal((4, 3)), np.ones(3))
    assert [c.history for op in scans(f) for c in op.states] == [False]


@pytest.mark.parametrize(
    "step",
    [
        lambda v, s: tanh(s) + v,
        lambda v, s: s + v,
        lambda v, s: s + 2 * v,
        lambda v, s: s + v * v + tanh(v),
        lambda v, s: s * v,
        lambda v, s: s,
        lambda v, s: v,
    ],
)
@pytest.mark.parametrize("mode", ["FAST_RUN", "FAST_COMPILE"])
def test_the_last_value_of_no_step_is_an_error_still(step, mode):
    """Also where the loop became a sum, and nothing of it is left."""
    x, s0 = VECTOR("x"), SCALAR("s0")
    last = scan(step, x, s0)[0][-1]
    f = function([x, s0], last, mode=mode, on_unused_input="ignore")
    f(np.ones(1), 1.0)
    with pytest.raises(IndexOutOfRange):
        f(np.zeros(0), 1.0)
    with pytest.raises(IndexOutOfRange):
        evaluate([last], {x: np.zeros(0), s0: np.float64(1)})


def test_unread_outputs_and_states_go():
    x, s0 = VECTOR("x"), SCALAR("s0")

    def step(v, a, b, c):
        return [tanh(a) + v, tanh(b) + a, tanh(c) + b, c * v]

    (first, _, _, _), _ = scan(step, x, [s0, s0, s0, None])
    f = check([x, s0], [first], RNG.standard_normal(3), np.float64(1))
    (op,) = scans(f)
    assert len(op.states) == 1
    assert op.collected == 0


def test_states_that_others_need_stay():
    x, s0 = VECTOR("x"), SCALAR("s0")
    (_, second), _ = scan(lambda v, a, b: [tanh(a) + v, tanh(b) + a], x, [s0, s0])
    f = check([x, s0], [second], RNG.standard_normal(3), np.float64(1))
    (op,) = scans(f)
    assert len(op.states) == 2
    assert sorted(c.history for c in op.states) == [False, True]


# -- what moves out -------------------------------------------------------------------------------


def test_a_map_is_no_loop_at_all():
    x, w = MATRIX("x"), MATRIX("w")
    y, _ = scan(lambda v, w: tanh(v.dot(w)) * v.sum(), x, None, w)
    f = check([x, w], [y], RNG.standard_normal((4, 3)), RNG.standard_normal((3, 2)))
    assert scans(f) == []


def test_a_map_that_asks_for_too_many_steps_is_an_error_still():
    x = VECTOR("x")
    y, _ = scan(lambda v: v * 2, x, n_steps=5)
    f = function([x], y)
    assert scans(f) == []
    with pytest.raises(ShapeMismatch):
        f(np.ones(3))
    np.testing.assert_array_equal(f(np.ones(7)), np.full(5, 2.0))


def test_products_with_sequences_go_before():
    x, h0, u, w = CUBE("x"), MATRIX("h0"), MATRIX("u"), MATRIX("w")
    h, _ = scan(lambda v, h: tanh(v.dot(u) + h.dot(w)), x, h0)
    values = [RNG.standard_normal(s) for s in ((5, 2, 3), (2, 4), (3, 4), (4, 4))]
    f = check([x, h0, u, w], [h], *values)
    assert [names.count("Dot") for names in inside(f)] == [1]


def test_what_depends_on_states_stays():
    x, s0 = VECTOR("x"), SCALAR("s0")
    f = check([x, s0], [cumulated(x, s0)], RNG.standard_normal(4), np.float64(1))
    assert [sorted(names) for names in inside(f)] == [["Add", "Tanh"]]


def test_outer_products_of_sequences_stay():
    x, s0 = MATRIX("x"), MATRIX("s0")
    y, _ = scan(lambda v, s: s * 0.5 + v.dimshuffle(0, "x") * v.dimshuffle("x", 0), x, s0)
    f = check([x, s0], [y], RNG.standard_normal((4, 3)), np.ones((3, 3)))
    assert "Mul" in inside(f)[0]


def test_random_numbers_stay():
    random_stream = pytest.importorskip("symdnn.ops.random.random_stream")
    stream = random_stream.RandomStream(7)
    x = VECTOR("x")
    y, updates = scan(lambda v: v * stream.uniform(size=(), dtype="float64"), x)
    f = function([x], y, updates=updates)
    assert len(scans(f)) == 1
    assert len(np.unique(f(np.ones(5)))) == 5


def test_outputs_made_of_states_go_after():
    x, h0, w, v = MATRIX("x"), VECTOR("h0"), MATRIX("w"), MATRIX("v")

    def step(xt, h):
        new = tanh(xt + h.dot(w))
        return [new, softmax(new.dot(v), 0)]

    (_, y), _ = scan(step, x, [h0, None])
    values = [RNG.standard_normal(s) for s in ((5, 3), (3,), (3, 3), (3, 2))]
    f = check([x, h0, w, v], [y], *values)
    (op,) = scans(f)
    assert op.collected == 0
    assert inside(f)[0].count("Dot") == 1


def test_until_keeps_its_outputs_inside():
    x, s0 = VECTOR("x"), SCALAR("s0")

    def step(v, s):
        return [tanh(s) + v, v * 2], until(s > 1)

    (h, y), _ = scan(step, x, [s0, None])
    f = check([x, s0], [h, y], np.ones(6), np.float64(0))
    assert scans(f)[0].collected == 1


def test_gradients_of_weights_are_one_product():
    x, h0, u, w, b = CUBE("x"), MATRIX("h0"), MATRIX("u"), MATRIX("w"), VECTOR("b")
    h, _ = scan(lambda v, h: tanh(v.dot(u) + h.dot(w) + b), x, h0)
    gradients = grad((h[-1] ** 2).sum(), [u, w, b, x, h0])
    values = [RNG.standard_normal(s) for s in ((5, 2, 3), (2, 4), (3, 4), (4, 4), (4,))]
    f = check([x, h0, u, w, b], gradients, *values)
    forward, backward = scans(f)
    assert len(forward.states) == len(backward.states) == 1
    assert [names.count("Dot") for names in inside(f)] == [1, 1]


def test_gradients_of_weights_of_each_lane_are_one_product_of_stacks():
    x, w = TensorType("float64", (None,) * 4)("x"), MATRIX("w")

    def of(x):
        h, _ = scan(lambda v, h, w: tanh(v + h.dot(w)), x, [T.zeros_like(x[0])], [w])
        return grad((h**2).sum(), w)

    for f, given in ((of, x), (lambda x: of(x)[0], x)):
        made = check([x, w], [symdnn.vmap(f)(given)], RNG.random((2, 5, 3, 4)), RNG.random((4, 4)))
        assert all("BatchedDot" not in names for names in inside(made))
    row = TensorType("float64", (None,) * 3)("row")
    made = check([row, w], [symdnn.vmap(of)(row)], RNG.random((2, 5, 4)), RNG.random((4, 4)))
    kinds = [o.type.broadcastable for op in scans(made) for o in op.inner.outputs]
    assert all(len(kind) - sum(kind) < 3 for kind in kinds)


def test_gradients_of_weights_with_vectors():
    x, h0, u, w = MATRIX("x"), VECTOR("h0"), MATRIX("u"), MATRIX("w")
    h, _ = scan(lambda v, h: tanh(v.dot(u) + h.dot(w)), x, h0)
    values = [RNG.standard_normal(s) for s in ((5, 3), (4,), (3, 4), (4, 4))]
    f = check([x, h0, u, w], grad((h**2).sum(), [u, w]), *values)
    assert [len(op.states) for op in scans(f)] == [1, 1]


def test_sums_of_what_is_the_same_at_each_step_stay_right():
    x, w, s0 = VECTOR("x"), SCALAR("w"), SCALAR("s0")
    total, _ = scan(lambda v, s, w: s + w + v, x, s0, w)
    check([x, w, s0], [total[-1]], RNG.standard_normal(4), np.float64(0.5), np.float64(2))


@pytest.mark.parametrize(
    "term",
    [
        lambda i, b: (b[: i + 1] * b[: i + 1]).sum(),
        lambda i, b: b[: i + 1].sum(axis=0).dot(b[: i + 1].T.dot(b[: i + 1])).sum(),
        lambda i, b: T.dot(b[: i + 1].T, b[: i + 1]),
    ],
    ids=["sum", "products", "product"],
)
def test_sums_of_parts_that_grow_stay_in_the_loop(term):
    """As attention to the entries that a cache has so far."""
    x = MATRIX("x")

    def step(i, v, total, b):
        b = T.set_subtensor(b[i], tanh(v))
        return total + term(i, b), b

    at = T.arange(x.shape[0])
    (totals, _), _ = scan(step, [at, x], [term(at[0], x).zeros_like(), x.zeros_like()])
    check([x], [totals[-1]], RNG.random((5, 3)))


def test_a_sum_that_steps_read_stays():
    x, s0 = VECTOR("x"), SCALAR("s0")
    (s, _), _ = scan(lambda v, s, p: [s + v, tanh(p) + s], x, [s0, s0])
    (_, p), _ = scan(lambda v, s, p: [s + v, tanh(p) + s], x, [s0, s0])
    f = check([x, s0], [p], RNG.standard_normal(4), np.float64(2))
    assert len(scans(f)[0].states) == 2
    check([x, s0], [s[-1]], RNG.standard_normal(4), np.float64(2))


@pytest.mark.cpu
def test_convolutions_are_left_in_the_loop():
    t4 = TensorType("float64", (None,) * 4)
    w = t4("w")
    x = TensorType("float64", (None,) * 5)("x")
    y, _ = scan(lambda v: conv2d(v, w), x)
    f = check([x, w], [y], RNG.standard_normal((2, 1, 1, 4, 4)), RNG.standard_normal((2, 1, 3, 3)))
    assert any(isinstance(n.op, Conv) for op in scans(f) for n in op.inner.nodes)


@pytest.mark.parametrize("left_out", ["scan", "scan_push_out", "scan_save_mem"])
def test_the_rules_can_be_switched_off(left_out):
    x, h0, u, w = MATRIX("x"), VECTOR("h0"), MATRIX("u"), MATRIX("w")
    h, _ = scan(lambda v, h: tanh(v.dot(u) + h.dot(w)), x, h0)
    slopes = grad(h[-1].sum(), [u, w])
    values = [RNG.standard_normal(s) for s in ((5, 3), (4,), (3, 4), (4, 4))]
    plain = function([x, h0, u, w], slopes, mode=Mode().excluding(left_out))
    whole = function([x, h0, u, w], slopes)
    for a, b in zip(plain(*values), whole(*values), strict=True):
        np.testing.assert_allclose(a, b)
    assert inside(plain) != inside(whole) or left_out == "scan_save_mem"


def test_the_body_is_rewritten_as_the_rest_is():
    x, s0 = MATRIX("x"), VECTOR("s0")
    sizes, _ = scan(lambda v, s: tanh(s) + (v + s).shape[0], x, s0)
    f = check([x, s0], [sizes], RNG.standard_normal((3, 2)), np.ones(2))
    assert "Dot" not in {n for names in inside(f) for n in names}
    assert all("Add" not in names or names.count("Add") <= 1 for names in inside(f))
    assert not any(isinstance(n.op, Dot) for n in f.fgraph.toposort())


@pytest.mark.parametrize(
    "step",
    [
        lambda z: T.maximum(z, z[::-1] * 0.9),
        lambda z: T.minimum(z, -z),
        lambda z: T.alloc(T.max(z, keepdims=True), 5) + 0,
        lambda z: T.cummax(z, axis=0),
        lambda z: T.maximum(T.tanh(z), 0.5 * z),
    ],
    ids=["maximum", "minimum", "row", "cummax", "of tanh"],
)
def test_products_for_all_steps_change_no_comparison(step):
    """Values that a gradient compares are rounded equally, though products are hoisted out of the
    loop.
    """
    x, w, h = T.dmatrix("x"), T.dmatrix("w"), T.dvector("h")
    states, _ = symdnn.scan(
        lambda x, h, w: step(T.dot(h, w) + x), sequences=[x], outputs_info=[h], non_sequences=[w]
    )
    slopes = symdnn.grad((states**2).sum(), [x, w, h])
    values = RNG.normal(size=(40, 5)), RNG.normal(size=(5, 5)) / 4, RNG.normal(size=5)
    found = symdnn.function([x, w, h], slopes)(*values)
    wanted = evaluate(slopes, dict(zip([x, w, h], values, strict=True)))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * abs(b).max())


@pytest.mark.parametrize("along", ["rows", "columns"])
def test_what_a_loop_computes_of_its_sequence_is_not_computed_again_for_its_gradient(along, rng):
    """The gradient's loop runs backwards, over the same values."""
    z, first = T.dmatrix("z"), T.dvector("first")
    given = rng.normal(size=(4, 7))
    x = z if along == "rows" else z.T
    y, _ = symdnn.scan(lambda e, h: h * T.exp(0.5 * T.sin(e)), x, first)
    slopes = symdnn.grad((y[-1] ** 3).sum(), [first, z])
    f = symdnn.function([z, first], slopes)
    sines = [n for n in f.fgraph.nodes if "sin(" in str(n.op) and "exp(" in str(n.op)]
    assert len(sines) == 1
    start = rng.normal(size=7 if along == "rows" else 4)
    factor = np.exp(0.5 * np.sin(given)).prod(axis=0 if along == "rows" else 1)
    got = f(given, start)
    np.testing.assert_allclose(got[0], 3 * (start * factor) ** 2 * factor)
    of_value = 3 * (start * factor) ** 3
    wide = of_value if along == "rows" else of_value[:, None]
    np.testing.assert_allclose(got[1], wide * 0.5 * np.cos(given))


@pytest.mark.parametrize("along", ["rows", "columns"])
def test_a_product_of_a_sequence_is_not_computed_again_for_the_gradient(along, rng):
    """Products of states, of which a loop makes one after the other, keep the gradient's order."""
    z, w, u = T.dmatrix("z"), T.dmatrix("w"), T.dmatrix("u")
    x = z if along == "rows" else z.T
    zero = T.zeros((3,), "float64")
    y, _ = symdnn.scan(lambda e, h, w, u: T.sin(T.dot(e, w) + T.dot(h, u)), x, zero, [w, u])
    slopes = symdnn.grad((y[-1] ** 3).sum(), [z, w, u])
    f = symdnn.function([z, w, u], slopes)
    given = (rng.normal(size=(5, 4) if along == "rows" else (4, 5)), rng.normal(size=(4, 3)),
             rng.normal(size=(3, 3)))  # fmt: skip
    wanted = evaluate(slopes, dict(zip([z, w, u], given, strict=True)))
    for a, b in zip(f(*given), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)
    # Of x by w, of the states by u, and the three gradients.
    assert sum("Dot" in type(n.op).__name__ or "Matmul" in type(n.op).__name__
               for n in f.fgraph.nodes) == 5  # fmt: skip
