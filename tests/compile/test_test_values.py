"""Test values: the graph is evaluated while it is built."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.errors import DimensionMismatch, InputError, MissingInputError
from symdnn.graph.traverse import toposort
from symdnn.graph.values.test_values_flag import attach_test_values


def with_value(x, value):
    x.tag.test_value = value
    return x


def test_values_follow_the_graph():
    with config.change_flags(compute_test_value="raise"):
        x = with_value(T.dmatrix("x"), np.ones((2, 3)))
        w = symdnn.shared(np.full((3, 4), 2.0))
        y = T.dot(x, w) + 1
        assert y.test_value.tolist() == [[7] * 4] * 2
        assert T.grad(y.sum(), w).test_value.shape == (3, 4)
        assert symdnn.function([x], y)(np.zeros((1, 3))).tolist() == [[1] * 4]


def test_a_wrong_shape_fails_at_the_users_line():
    with config.change_flags(compute_test_value="raise"):
        x = with_value(T.dmatrix("x"), np.ones((2, 3)))
        y = with_value(T.dmatrix("y"), np.ones((2, 3)))
        with pytest.raises(DimensionMismatch) as info:
            T.dot(x, y)
        assert "float64(2, 3)" in "".join(info.value.__notes__)
        assert __file__ in "".join(info.value.__notes__)


def test_off_computes_nothing():
    x = with_value(T.dvector("x"), np.ones(2))
    assert (x + 1).test_value is None


def test_a_missing_value():
    x, y = with_value(T.dvector("x"), np.ones(2)), T.dvector("y")
    with config.change_flags(compute_test_value="ignore"):
        assert (x + y).test_value is None
    with (
        config.change_flags(compute_test_value="warn"),
        pytest.warns(UserWarning, match="y of type .* has no test value"),
    ):
        T.exp(y)
    with (
        config.change_flags(compute_test_value="raise"),
        pytest.raises(MissingInputError, match=r"y of type .*, an input of Exp, has no test"),
    ):
        T.exp(y)


@pytest.mark.parametrize(
    ("value", "error"),
    [(np.ones((2, 2)), DimensionMismatch), (np.ones(2, "complex64"), InputError)],
)
def test_a_test_value_of_another_type(value, error):
    x = with_value(T.dvector("x"), value)
    with (
        config.change_flags(compute_test_value="raise"),
        pytest.raises(error, match="test value of x"),
    ):
        T.exp(x)


def test_compiling_needs_no_test_values():
    with config.change_flags(compute_test_value="raise"):
        x = with_value(T.dmatrix("x"), np.ones((2, 2)))
        y = T.nnet.softmax(x).sum() * x.shape[0]
        z = T.dmatrix("z")
        f = symdnn.function([z], y, givens={x: z})
    assert f(np.ones((3, 2))).shape == ()


STEPS = {
    "sequence": lambda x, h, w: symdnn.scan(lambda v: v + 1, sequences=x)[0],
    "recurrent": lambda x, h, w: symdnn.scan(
        lambda v, s, w: T.tanh(v + T.dot(s, w)), sequences=x, outputs_info=h, non_sequences=w
    )[0],
    "outer variable": lambda x, h, w: symdnn.scan(
        lambda v, s: T.tanh(v + T.dot(s, w)), sequences=x, outputs_info=h
    )[0],
    "until": lambda x, h, w: symdnn.scan(
        lambda v, s: (v + s, symdnn.until(T.gt(s.sum(), 3))), sequences=x, outputs_info=h
    )[0],
    "taps": lambda x, h, w: symdnn.scan(
        lambda u, v, s, t: u * v + s * T.dot(t, w),
        sequences=dict(input=x, taps=[0, 1]), outputs_info=dict(initial=x[:2], taps=[-2, -1]),
    )[0],
    "backwards": lambda x, h, w: symdnn.scan(
        lambda v, s: v * s, sequences=x, outputs_info=h + 1, go_backwards=True
    )[0],
    "nested": lambda x, h, w: symdnn.scan(
        lambda v: symdnn.scan(lambda u: u * v.sum(), sequences=v)[0], sequences=x
    )[0],
    "no steps": lambda x, h, w: symdnn.scan(lambda v: T.dot(v, w), sequences=x[:0])[0],
    "number that becomes an array": lambda x, h, w: symdnn.scan(
        lambda v, s: s + v, sequences=x[:, 0], outputs_info=T.constant(0.0)
    )[0],
    "int that becomes a float": lambda x, h, w: symdnn.scan(
        lambda v, s: s * 0.5 + v, sequences=x[:, 0], outputs_info=1
    )[0],
    "map": lambda x, h, w: symdnn.map(lambda v: T.dot(v, w), x)[0],
    "graph": lambda x, h, w: symdnn.OpFromGraph([v := T.dmatrix("v")], [T.tanh(v) * 2])(x),
    "choice": lambda x, h, w: symdnn.ifelse(T.gt(x.sum(), 0), x[1:], T.dot(x, w)),
}  # fmt: skip


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("action", ["raise", "warn"])
def test_loops_choices_and_graphs_have_values_and_so_have_their_gradients(kind, action, rng):
    arrays = [rng.standard_normal(s) for s in ((4, 2), (2,), (2, 2))]
    x, h, w = (
        with_value(T.TensorType("float64", (None,) * a.ndim)(n), a) for n, a in zip("xhw", arrays)
    )
    if kind == "graph":
        with config.change_flags(compute_test_value="off"):
            y = STEPS[kind](x, h, w)
        with config.change_flags(compute_test_value=action):
            y = y.owner.op(x)
    with config.change_flags(compute_test_value=action):
        if kind != "graph":
            y = STEPS[kind](x, h, w)
        grads = T.grad((y**2).sum(), [x, h, w], disconnected_inputs="ignore")
        second = T.grad(sum((g**2).sum() for g in grads), x, disconnected_inputs="ignore")
        forward = T.Rop(y, x, T.ones_like(x))
    wanted = [y, *grads, second, forward]
    f = symdnn.function([x, h, w], wanted, on_unused_input="ignore")
    for v, value in zip(wanted, f(*arrays), strict=True):
        np.testing.assert_allclose(v.test_value, value, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", STEPS)
def test_rows_of_jacobians_have_values(kind, rng):
    """Through loops, graphs, choices, and an op that has no rule for batches."""
    arrays = [rng.standard_normal(s) for s in ((4, 2), (2,), (2, 2))]
    x, h, w = (
        with_value(T.TensorType("float64", (None,) * a.ndim)(n), a) for n, a in zip("xhw", arrays)
    )
    with config.change_flags(compute_test_value="off"):
        y = STEPS[kind](x, h, w)
    for v in toposort([y]):
        attach_test_values(v)
    with config.change_flags(compute_test_value="raise"):
        rows = T.jacobian((y**2).flatten(), x, disconnected_inputs="ignore")
        bend = T.hessian((T.tanh(h) * T.sort(h**3)).sum() * y.sum(), h)
        many = symdnn.vmap(lambda s: T.cumsum(s) * 2)(x)
        slope = symdnn.grad(lambda s: T.tanh(s).sum())(x)
        assert symdnn.jit(lambda s: s * 2)(np.ones(3)).tolist() == [2, 2, 2]
    wanted = [rows, bend, many, slope]
    f = symdnn.function([x, h, w], wanted, on_unused_input="ignore")
    for v, value in zip(wanted, f(*arrays), strict=True):
        np.testing.assert_allclose(v.test_value, value, rtol=1e-6, atol=1e-9)


def test_a_gradient_is_checked_under_test_values():
    with config.change_flags(compute_test_value="raise"):
        T.verify_grad(lambda x, i: T.tanh(x)[i], [np.linspace(-1, 1, 4), np.array([2, 0])])


def test_a_loop_over_a_variable_without_a_value_still_raises():
    with config.change_flags(compute_test_value="raise"), pytest.raises(MissingInputError):
        symdnn.scan(lambda v: v + 1, sequences=T.dvector("x"))
