"""vmap and vectorize_graph: against a loop of calls, trees of axes, draws, loops, refusals."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import control
from symdnn.errors import (
    AxisError,
    DataDependentShape,
    GraphError,
    InputError,
    OptionError,
    ShapeMismatch,
    TypeMismatch,
)
from symdnn.ops.random.random_stream import RandomStream
from symdnn.transforms.vectorize import vectorize_graph, vmap

RNG = np.random.default_rng(19)
A = RNG.standard_normal((4, 3))
B = RNG.standard_normal((3, 5))


def run(outputs, **values):
    """Outputs of a compiled function of the variables of these names."""
    leaves = [v for v in symdnn.graph.traverse.graph_inputs(_list(outputs)) if v.name in values]
    return symdnn.function(leaves, outputs)(*(values[v.name] for v in leaves))


def _list(outputs):
    return list(outputs) if isinstance(outputs, list | tuple) else [outputs]


def each(f, *arrays):
    """``f`` of NumPy's kind on each entry, stacked."""
    return np.stack([f(*entry) for entry in zip(*arrays, strict=True)])


# -- axes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_an_axis_of_an_argument(axis):
    x = T.dmatrix("x")
    found = run(vmap(lambda v: (v**2).sum(), in_axes=axis)(x), x=A)
    np.testing.assert_allclose(found, (A**2).sum(1 - axis % 2))


@pytest.mark.parametrize(("axis", "want"), [(0, (4, 3, 5)), (1, (3, 4, 5)), (-1, (3, 5, 4))])
def test_an_axis_of_a_result(axis, want):
    x, y = T.dmatrix("x"), T.dmatrix("y")
    f = vmap(lambda v, m: v.dimshuffle(0, "x") * m, in_axes=(0, None), out_axes=axis)
    found = run(f(x, y), x=A, y=B)
    assert found.shape == want
    np.testing.assert_allclose(found, np.moveaxis(A[:, :, None] * B, 0, axis))


def test_trees_of_arguments_axes_and_results():
    x, w, b = T.dmatrix("x"), T.dmatrix("w"), T.dvector("b")

    def f(params, pair, *, scale):
        v, (k, none) = pair
        assert none is None
        y = v.dot(params["w"]) + params["b"]
        return {"y": y * scale, "more": [params["b"], (k + 1,)]}

    g = vmap(f, in_axes=({"w": None, "b": None}, (0, None)), out_axes={"y": 1, "more": 0})
    s = T.dvector("s")
    found = g({"w": w, "b": b}, (x, (2.0, None)), scale=s)
    values = {"x": A, "w": B, "b": np.arange(5.0), "s": np.arange(4.0)}
    y, more, two = run([found["y"], found["more"][0], found["more"][1][0]], **values)
    np.testing.assert_allclose(y, ((A @ B + values["b"]) * values["s"][:, None]).T)
    np.testing.assert_array_equal(more, np.tile(values["b"], (4, 1)))
    np.testing.assert_array_equal(two, np.full(4, 3.0))


def test_a_result_that_no_entry_changes_may_stay_one():
    x, y = T.dmatrix("x"), T.dvector("y")
    f = vmap(lambda v: (v + y, y * 2), out_axes=(0, None))
    found = run(list(f(x)), x=A, y=A[0])
    np.testing.assert_allclose(found[1], 2 * A[0])
    with pytest.raises(AxisError, match="result.0. equal for all entries"):
        vmap(lambda v: (v + y, y * 2), out_axes=(None, 0))(x)


def test_arguments_and_results_may_be_numbers_and_arrays():
    found = vmap(lambda v, k: (v * k, 7))(A, np.arange(4.0))
    got = run(list(found))
    np.testing.assert_allclose(got[0], A * np.arange(4.0)[:, None])
    np.testing.assert_array_equal(got[1], [7] * 4)


@pytest.mark.parametrize("lanes", [0, 1])
def test_a_batch_of_none_and_of_one(lanes):
    x, w = T.dmatrix("x"), T.dmatrix("w")

    def f(v):
        cost = T.tanh(v.dot(w)).sum()
        return symdnn.grad(cost, w), T.sort(v), v.max()

    got = run(list(vmap(f)(x)), x=A[:lanes], w=B)
    assert [g.shape for g in got] == [(lanes, 3, 5), (lanes, 3), (lanes,)]


def test_what_is_no_axis_is_refused():
    x, y = T.dmatrix("x"), T.dvector("y")
    with pytest.raises(AxisError, match="in_axes of args.0."):
        vmap(lambda v: v, in_axes=2)(x)
    with pytest.raises(AxisError, match="in_axes as an int, None, or a tree"):
        vmap(lambda v: v, in_axes=(0, 0))(x)
    with pytest.raises(AxisError, match="in_axes of None alone"):
        vmap(lambda v: v, in_axes=None)(x)
    with pytest.raises(AxisError, match="args.1. with a dimension 0"):
        vmap(lambda v, s: v * s)(x, y[0])
    with pytest.raises(AxisError, match="out_axes of the result"):
        vmap(lambda v: v, out_axes=5)(x)
    with pytest.raises(InputError, match="which has no dimensions"):
        vmap(lambda v, s: v)(x, "mean")
    with pytest.raises(OptionError, match="error, different, same"):
        vmap(lambda v: v, randomness="none")


def test_sizes_of_the_dimension_must_agree():
    a, b = T.TensorType("float64", (3, 2))("a"), T.TensorType("float64", (4, 2))("b")
    with pytest.raises(ShapeMismatch, match=r"args\[0\]: 3, args\[1\]: 4"):
        vmap(lambda v, u: v + u)(a, b)
    x, y = T.dmatrix("x"), T.dmatrix("y")
    f = symdnn.function([x, y], list(vmap(lambda v, u: (v.sum(), u.sum()))(x, y)))
    with pytest.raises(ShapeMismatch):
        f(A, A[:3])


# -- nests, and derivatives -----------------------------------------------------------------------


def test_a_vmap_in_a_vmap_by_other_axes():
    x, y = T.dmatrix("x"), T.dmatrix("y")
    outer = vmap(vmap(lambda u, v: (u * v).sum(), in_axes=(None, 1)), in_axes=(0, None))
    np.testing.assert_allclose(run(outer(x, y), x=A, y=B), A @ B)
    swapped = vmap(vmap(lambda u, v: (u * v).sum(), in_axes=(0, None)), in_axes=(None, 1))
    np.testing.assert_allclose(run(swapped(x, y), x=A, y=B), (A @ B).T)


def test_gradients_of_each_example_are_rows_of_the_gradient():
    x, w = T.dmatrix("x"), T.dmatrix("w")

    def loss(v):
        return T.tanh(v.dot(w)).sum() ** 2

    per_example = vmap(lambda v: symdnn.grad(loss(v), w))(x)
    total = symdnn.grad(vmap(loss)(x).sum(), w)
    got, want = run([per_example, total], x=A, w=B)
    assert got.shape == (4, 3, 5)
    np.testing.assert_allclose(got.sum(0), want)
    tangent = T.dmatrix("t")
    along = symdnn.Rop(vmap(loss)(x), w, tangent)
    t = RNG.standard_normal(B.shape)
    np.testing.assert_allclose(run(along, x=A, w=B, t=t), (got * t).sum((1, 2)))


def test_a_jacobian_and_a_hessian_of_each_example():
    x = T.dmatrix("x")
    h = vmap(lambda v: symdnn.hessian((v**3).sum() + v[0] * v[1], v))(x)
    want = each(lambda a: np.diag(6 * a), A)
    want[:, 0, 1] = want[:, 1, 0] = 1
    np.testing.assert_allclose(run(h, x=A), want)


# -- conditions and loops -------------------------------------------------------------------------


def test_a_condition_of_each_example_computes_both_branches():
    x = T.dvector("x")

    def f(v):
        return symdnn.ifelse(v > 0, T.sqrt(v), v**2)

    values = np.array([-2.0, 0.25, 4.0])
    got, slope, outside = run(
        [vmap(f)(x), vmap(lambda v: symdnn.grad(f(v), v))(x), symdnn.grad(vmap(f)(x).sum(), x)],
        x=values,
    )
    np.testing.assert_allclose(got, [4, 0.5, 2])
    np.testing.assert_allclose(slope, [-4, 1, 0.25])
    np.testing.assert_allclose(outside, [-4, 1, 0.25])


def test_a_branch_that_is_not_taken_passes_no_gradient_on():
    x, w = T.dmatrix("x"), T.dvector("w")

    def f(v):
        rough = T.sqrt(T.dot(v, w)) + (v**w).sum()
        return symdnn.ifelse(v[0] > 0, rough, v.sum())

    values = np.array([[-1.0, 0.0], [1.0, 2.0]])
    each = vmap(lambda v: symdnn.grad(f(v), [v, w]))(x)
    through = symdnn.grad(vmap(f)(x).sum(), [x, w])
    dv, dw, dx, dw_sum = run([*each, *through], x=values, w=np.array([0.5, 0.5]))
    slope = 0.5 / np.sqrt(1.5)
    want = slope * 0.5 + 0.5 * values[1] ** -0.5
    np.testing.assert_allclose(dv, [[1, 1], want])
    np.testing.assert_allclose(dx, [[1, 1], want])
    own = slope * values[1] + np.sqrt(values[1]) * np.log(values[1])
    np.testing.assert_allclose(dw, [[0, 0], own])
    np.testing.assert_allclose(dw_sum, own)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_derivatives_of_every_order_are_those_of_the_branch_taken(order):
    """Sizes and conditions read values of a branch, too: they are no users of its gradients."""

    def rough(v):
        u = v * 2
        return symdnn.ifelse(u.sum() > 0, T.log(u).sum() + (u**0.5).sum(), (u**4).sum())

    def inner(v):
        return symdnn.ifelse(v[0] > 1, symdnn.ifelse(v[1] > 0, T.log(v[1]), v[1] ** 4), rough(v))

    values = np.array([[0.0, 0.0], [-1.0, -2.0], [2.0, 0.0], [2.0, -3.0]])
    scale = [4, 12, 24][order - 1]
    for f in (rough, inner):
        slope = f
        for _ in range(order):
            slope = (lambda g: lambda v: symdnn.grad(g)(v).sum())(slope)
        x = T.dmatrix("x")
        (found,) = run([vmap(slope)(x)], x=values)
        np.testing.assert_allclose(found, [symdnn.jit(slope)(v) for v in values])
        wanted = 16 * scale * (values ** (4 - order)).sum(1)
        np.testing.assert_allclose(found[:2], wanted[:2])
        if f is inner:
            np.testing.assert_allclose(found[2:], [0, scale * (-3.0) ** (4 - order)])


def test_a_condition_within_a_branch_is_not_read_outside():
    """Neither by the gradient nor by its gradient: here it would be an index out of range."""
    v, i = T.dvector("v"), T.lscalar("i")
    inner = symdnn.ifelse(v[i] > 0, T.log(v[i] * 2), v[i] * 3)
    slope = symdnn.grad(symdnn.ifelse(i < 3, inner, v.sum()), v)
    f = symdnn.function([v, i], [slope, symdnn.grad(slope.sum(), v)])
    for k, first, second in ((1, [0, 0.5, 0], [0, -0.25, 0]), (9, [1, 1, 1], [0, 0, 0])):
        for got, want in zip(f(np.array([1.0, 2.0, 3.0]), k), (first, second), strict=True):
            np.testing.assert_allclose(got, want)


def collatz(start):
    def step(n, count):
        new = T.switch(T.eq(n % 2, 0), n // 2, 3 * n + 1)
        return [new, count + 1], symdnn.until(T.eq(new, 1))

    (values, counts), _ = symdnn.scan(step, outputs_info=[start, np.int64(0)], n_steps=1000)
    return values[-1], counts[-1], counts.shape[0]


def test_loops_that_end_after_numbers_of_steps_of_their_own():
    n = T.lvector("n")
    starts = np.array([6, 27, 2, 7])
    last, counts, sizes = run(list(vmap(collatz)(n)), n=starts)
    np.testing.assert_array_equal(last, [1, 1, 1, 1])
    np.testing.assert_array_equal(counts, [8, 111, 1, 16])
    np.testing.assert_array_equal(sizes, counts)
    assert [a.shape for a in run(list(vmap(collatz)(n)), n=starts[:0])] == [(0,)] * 3


def test_numbers_of_steps_of_their_own():
    x, n = T.dvector("x"), T.lvector("n")

    def power(v, k):
        y, _ = symdnn.scan(lambda a: a * v, outputs_info=[T.ones_like(v)], n_steps=k)
        return y[-1]

    found = vmap(power)(x, n)
    got = run([found, symdnn.grad(found.sum(), x)], x=np.array([2.0, 3.0, 1.5]), n=[3, 1, 5])
    np.testing.assert_allclose(got[0], [8, 3, 1.5**5])
    np.testing.assert_allclose(got[1], [12, 1, 5 * 1.5**4])


def test_a_frozen_state_passes_its_gradient_on():
    x = T.dvector("x")

    def f(v):
        y, _ = symdnn.scan(
            lambda a: (a * v, symdnn.until(a * v > 10)), outputs_info=[v], n_steps=50
        )
        return y[-1]

    found = vmap(f)(x)
    got = run([found, symdnn.grad(found.sum(), x)], x=np.array([2.0, 3.0, 11.0]))
    np.testing.assert_allclose(got[0], [16, 27, 121])
    np.testing.assert_allclose(got[1], [4 * 8, 3 * 9, 22])


def test_loops_that_end_alone_in_nests():
    x = T.dmatrix("x")

    def grown(v):
        y, _ = symdnn.scan(
            lambda a: (a * v, symdnn.until(a * v > 10)), outputs_info=[v], n_steps=50
        )
        return y[-1]

    def outer(v):
        y, _ = symdnn.scan(lambda a: grown(a) / 10 + 1, outputs_info=[v], n_steps=2)
        return y[-1]

    values = np.array([[2.0, 3.0], [11.0, 1.5]])
    s = T.dscalar("s")
    found = [vmap(vmap(f), in_axes=1, out_axes=1)(x) for f in (grown, outer)]
    alone = symdnn.function([s], [grown(s), outer(s)])
    want = [np.vectorize(lambda v, k=k: alone(v)[k])(values) for k in (0, 1)]
    for got, w in zip(run(found, x=values), want):
        np.testing.assert_allclose(got, w)
    with pytest.raises(DataDependentShape, match="different numbers of steps.*the result of vmap"):
        vmap(lambda v: symdnn.grad(grown(v), v))(x[0])


def test_states_of_deeper_taps_end_alone():
    x = T.dmatrix("x")

    def fibonacci(v):
        y, _ = symdnn.scan(
            lambda a, b: (a + b, symdnn.until(a + b > 20)),
            outputs_info=[{"initial": v, "taps": [-2, -1]}],
            n_steps=50,
        )
        return y[-1], y[-2]

    got = run(list(vmap(fibonacci)(x)), x=np.array([[1.0, 1.0], [5.0, 8.0], [1.0, 3.0]]))
    np.testing.assert_array_equal(got[0], [21, 21, 29])
    np.testing.assert_array_equal(got[1], [13, 13, 18])


def test_what_has_a_length_of_its_own_is_refused_by_name():
    x = T.dvector("x")

    def doubled(v):
        y, _ = symdnn.scan(lambda a: (2 * a, symdnn.until(a > 10)), outputs_info=[v], n_steps=50)
        return y

    with pytest.raises(DataDependentShape, match="the result have different sizes.*y.-1."):
        vmap(doubled)(x)
    with pytest.raises(DataDependentShape, match="a size of its own"):
        vmap(lambda v: doubled(v).sum())(x)


def test_sizes_that_depend_on_the_entry_are_refused_by_name():
    x, n = T.dmatrix("x"), T.lvector("n")
    for f in (lambda k: T.arange(k), lambda k: T.zeros((k,)), lambda k: T.ones(6).reshape((k, -1))):
        with pytest.raises(DataDependentShape, match="a size depends on") as caught:
            vmap(f)(n)
        assert any("test_vectorize" in note for note in caught.value.__notes__)
    with pytest.raises(DataDependentShape, match="depends on values that differ"):
        vmap(lambda v: T.nonzero(v)[0])(x)
    with pytest.raises(DataDependentShape, match="depends on the number of counts of bincount, wh"):
        vmap(T.bincount)(T.lmatrix("n"))


def test_a_window_at_a_place_of_each_example_is_allowed():
    x, i = T.dmatrix("x"), T.lvector("i")
    got = run(vmap(lambda v, k: v[k : k + 2])(x, i), x=A, i=np.array([0, 1, 1, 0]))
    np.testing.assert_array_equal(got, each(lambda a, k: a[k : k + 2], A, [0, 1, 1, 0]))


# -- updates --------------------------------------------------------------------------------------


def test_updates_inside_are_refused_by_name():
    x, total = T.dmatrix("x"), symdnn.shared(0.0, name="total")
    with pytest.raises(GraphError, match="an update of total that differs"):
        vmap(lambda v: (v.sum(), {total: total + v.sum()}))(x)

    def counted(v):
        total.default_update = total + v.sum()
        return v + total

    with pytest.raises(GraphError, match="default update of total depends on values"):
        vmap(counted)(x)
    total.default_update = total + 1  # of no entry: it happens once
    f = symdnn.function([x], vmap(lambda v: v + total)(x))
    f(A)
    assert total.get_value() == 1


# -- random numbers -------------------------------------------------------------------------------


def test_draws_are_refused_unless_the_user_says_how():
    x = T.dmatrix("x")
    with pytest.raises(OptionError, match="randomness='different'"):
        vmap(lambda v: v + RandomStream(1).normal((3,)))(x)
    with pytest.raises(OptionError, match="randomness"):
        vmap(lambda v: T.nnet.dropout(v, 0.5, RandomStream(1)))(x)
    outside = RandomStream(1).normal((3,), dtype="float64")  # it is no draw of the function
    got = run(vmap(lambda v: v + outside)(x) - x, x=A)
    np.testing.assert_allclose(got, np.tile(got[0], (4, 1)))


def walk(stream, v):
    walked, updates = symdnn.scan(
        lambda a: a + stream.normal((3,), dtype="float64"), outputs_info=[v[:3] * 0], n_steps=2
    )
    return walked[-1], updates


DRAWS = {
    "uniform": (2, lambda s, v: s.uniform((2,))),
    "bernoulli of the entry": (9, lambda s, v: s.binomial((9,), p=abs(T.tanh(v)) / 2)),
    "permutation": (5, lambda s, v: s.permutation(n=5)),
    "in a loop": (6, walk),
    "a dropped entry": (9, lambda s, v: T.nnet.dropout(v * 0 + 1, 0.5, s)),
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("randomness", ["different", "same"])
def test_draws_of_each_entry_or_of_all(name, randomness):
    x, stream, (count, draw) = T.dmatrix("x"), RandomStream(3), DRAWS[name]
    found = vmap(lambda v: draw(stream, v), randomness=randomness)(x)
    values, updates = found if isinstance(found, tuple) else (found, {})
    f = symdnn.function([x], values, updates=updates)
    first, second = (f(np.ones((40, 9))) for _ in range(2))
    assert (first != second).any()
    distinct = len({a.tobytes() for a in first})
    assert distinct == 1 if randomness == "same" else distinct > 3
    drawn = sum(int(s.get_value()[1]) for s, _ in stream.state_updates)
    assert drawn == 2 * count * (1 if randomness == "same" else 40)


def test_the_mask_of_a_gradient_is_that_of_the_value():
    x = T.dmatrix("x")
    for randomness in ("same", "different"):
        stream = RandomStream(5)

        def f(v, stream=stream):
            y = T.nnet.dropout(v, 0.5, stream)
            return y, symdnn.grad((y**2).sum(), v)

        y, g = run(list(vmap(f, randomness=randomness)(x)), x=np.ones((6, 8)))
        np.testing.assert_allclose(g, 2 * y * 2)


def test_draws_in_a_nest():
    x = T.dtensor3("x")
    stream = RandomStream(7)
    inner = vmap(lambda v: stream.uniform((2,)), randomness="different")
    got = run(vmap(inner, randomness="different")(x), x=np.ones((3, 4, 5)))
    assert got.shape == (3, 4, 2)
    assert len(np.unique(got)) == 24
    got = run(vmap(inner, randomness="same")(x), x=np.ones((3, 4, 5)))
    assert len(np.unique(got)) == 8
    np.testing.assert_array_equal(got[0], got[2])


# -- vectorize_graph ------------------------------------------------------------------------------


def test_an_expression_over_stacks():
    x, w = T.dvector("x"), T.dmatrix("w")
    y = {"y": x.dot(w), "same": w.sum()}
    xs = T.dmatrix("xs")
    found = vectorize_graph(y, {x: xs})
    assert found["same"] is y["same"]
    np.testing.assert_allclose(run(found["y"], xs=A, w=B), A @ B)
    deep, ws = T.dtensor3("deep"), T.dmatrix("ws")
    found = vectorize_graph(y["y"], {x: deep, w: ws * 2})
    values = RNG.standard_normal((2, 4, 3))
    np.testing.assert_allclose(run(found, deep=values, ws=B), values @ B * 2)


def test_an_intermediate_variable_may_be_replaced():
    x = T.dvector("x")
    middle = x * 2
    ms = T.dmatrix("ms")
    np.testing.assert_allclose(run(vectorize_graph(middle.sum(), {middle: ms}), ms=A), A.sum(1))


def test_stacks_that_do_not_fit_are_refused():
    x, y = T.dvector("x"), T.dvector("y")
    with pytest.raises(TypeMismatch, match="a stack of x"):
        vectorize_graph(x * 2, {x: T.fmatrix("f")})
    with pytest.raises(ShapeMismatch, match="as many leading dimensions"):
        vectorize_graph(x * y, {x: T.dmatrix("a"), y: T.dtensor3("b")})


def test_a_draw_of_an_expression_keeps_its_own_stream():
    x, xs = T.dvector("x"), T.dmatrix("xs")
    stream = RandomStream(9)
    y = T.nnet.dropout(x, 0.5, stream)
    with pytest.raises(OptionError, match="randomness"):
        vectorize_graph(y, {x: xs})
    wide = vectorize_graph(y, {x: xs}, randomness="different")
    f, g = symdnn.function([x], y), symdnn.function([xs], wide)
    ((state, _),) = stream.state_updates
    f(np.ones(8))
    assert int(state.get_value()[1]) == 8
    assert len({a.tobytes() for a in g(np.ones((6, 8)))}) > 2
    assert int(state.get_value()[1]) == 8 + 48
    f(np.ones(8))
    assert int(state.get_value()[1]) == 8 + 48 + 8


def test_updates_of_functions_of_jit_inside_are_those_of_all_entries(rng):
    count, x = symdnn.shared(np.zeros(())), rng.normal(size=(3, 2))

    @symdnn.jit
    def counting(v):
        return v * 2, {count: count + 1}

    @symdnn.jit
    def summing(v):
        return v, {count: count + v.sum()}

    np.testing.assert_allclose(symdnn.jit(symdnn.vmap(counting))(x), 2 * x)
    assert count.get_value() == 1
    with pytest.raises(GraphError, match="differs between the entries"):
        symdnn.jit(symdnn.vmap(summing))(x)


@pytest.mark.parametrize("how", ["different", "same"])
def test_calls_that_end_alone_draw_from_one_stream(how):
    stream, x = RandomStream(2), np.array([0.0, 0.5, 0.5, 5.0])

    def walk(v):
        def step(c):
            return control.fori_loop(0, 2, lambda i, d: d + stream.uniform((), dtype="float64"), c)

        return control.while_loop(lambda c: c < 3.0, step, v)

    f = symdnn.jit(symdnn.vmap(walk, randomness=how))
    first, second = f(x), f(x)
    assert (first >= 3).all()
    assert (first < 5.5).all()
    assert first[3] == 5
    assert (first[1] == first[2]) == (how == "same")
    assert (first[:3] != second[:3]).all()
