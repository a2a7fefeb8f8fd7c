"""Derivatives of functions: against NumPy, differences and each other."""

import gc
import weakref
from itertools import pairwise

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import ArgumentError, NonDifferentiable, ShapeMismatch, TypeMismatch
from symdnn.ops.random.random_stream import RandomStream


def mlp(p, x):
    """A net with parameters as a tree."""
    for layer in p["layers"]:
        x = T.tanh(T.dot(x, layer["w"]) + layer["b"])
    return ((x - p["shift"]) ** 2).sum()


def parameters(rng):
    """Parameters of :func:`mlp`."""
    sizes = (3, 4, 2)
    layers = [{"w": rng.normal(size=(m, n)), "b": rng.normal(size=n)} for m, n in pairwise(sizes)]
    return {"layers": layers, "shift": np.float64(0.3)}


def moved(p, d, step):
    """``p + step * d`` of two trees."""
    if isinstance(p, dict):
        return {k: moved(v, d[k], step) for k, v in p.items()}
    if isinstance(p, list):
        return [moved(v, e, step) for v, e in zip(p, d)]
    return p + step * d


def inner(a, b):
    """The inner product of two trees."""
    if isinstance(a, dict):
        return sum(inner(v, b[k]) for k, v in a.items())
    if isinstance(a, list | tuple):
        return sum(inner(v, w) for v, w in zip(a, b))
    return float(np.sum(a * b))


def test_all_agree_on_a_tree(rng):
    p, d, x = parameters(rng), parameters(rng), rng.normal(size=(5, 3))
    f = symdnn.jit(mlp)
    value, slope = symdnn.value_and_grad(mlp)(p, x)
    wanted = (f(moved(p, d, 1e-6), x) - f(moved(p, d, -1e-6), x)) / 2e-6
    assert np.isclose(inner(slope, d), wanted, rtol=1e-6)
    assert np.isclose(value, f(p, x))
    _, along = symdnn.jvp(mlp, (p, x), (d, None))
    _, pull_back = symdnn.vjp(mlp, p, x)
    _, derivative = symdnn.linearize(mlp, p, x)
    assert np.isclose(along, wanted, rtol=1e-6)
    assert np.isclose(inner(pull_back(2.0)[0], d), 2 * wanted, rtol=1e-6)
    assert np.isclose(derivative(d, np.zeros_like(x)), wanted, rtol=1e-6)
    twice = symdnn.hvp(lambda p: mlp(p, x), (p,), (d,))[0]
    grads = [symdnn.grad(mlp)(moved(p, d, s), x) for s in (1e-6, -1e-6)]
    assert np.isclose(inner(twice, d), (inner(grads[0], d) - inner(grads[1], d)) / 2e-6, rtol=1e-5)


def test_forward_mode_of_any_order_and_in_any_mixture():
    def along(f):
        return lambda x: symdnn.jvp(f, (x,), (1.0,))[1]

    def f(x):
        return T.exp(2 * x) * x

    wanted = lambda n: np.exp(2 * 0.3) * 2 ** (n - 1) * (2 * 0.3 + n)  # noqa: E731
    g = f
    for n in range(5):
        assert np.isclose(symdnn.jit(g)(0.3), wanted(n)), n
        assert np.isclose(symdnn.grad(g)(0.3), wanted(n + 1)), n
        g = along(g)
    assert np.isclose(symdnn.grad(along(symdnn.grad(f)))(0.3), wanted(3))


def test_an_argument_given_twice_or_closed_over_is_differentiated_where_meant():
    product = lambda a, b: a * b  # noqa: E731
    both = symdnn.jit(lambda x: symdnn.grad(product, (0, 1))(x, x))
    assert [float(g) for g in both(3.0)] == [3, 3]
    assert symdnn.jit(lambda x: symdnn.grad(lambda y: y * x)(x * x))(3.0) == 3
    assert symdnn.grad(lambda x: symdnn.grad(lambda y: y * y * x)(x))(3.0) == 12


def test_names_further_results_and_structure():
    def f(x, *, scale):
        return (x * scale).sum(), {"twice": 2 * x}

    x = np.arange(3.0)
    (value, aux), slope = symdnn.value_and_grad(f, "scale", has_aux=True)(x, scale=2.0)
    assert (value, slope) == (6, 3)
    assert aux["twice"].tolist() == [0, 2, 4]
    slopes, aux = symdnn.grad(f, (0, "scale"), has_aux=True)(x, scale=2.0)
    assert slopes[0].tolist() == [2, 2, 2]
    assert slopes[1] == 3
    assert float(symdnn.grad(lambda a, b: a)(1.0, 2.0)) == 1
    assert float(symdnn.grad(lambda a, b: a, 1)(1.0, 2.0)) == 0
    assert symdnn.jvp(lambda x: (x, x), (2.0,), (3.0,))[1] == (3, 3)


def test_grad_has_one_meaning_for_expressions_and_functions():
    x = T.dvector("x")
    cost = (x**3).sum()
    of_expression = symdnn.function([x], symdnn.grad(cost, x))
    of_function = symdnn.grad(lambda x: (x**3).sum())
    point = np.array([1.0, -2.0])
    np.testing.assert_array_equal(of_expression(point), of_function(point))
    np.testing.assert_array_equal(symdnn.function([x], of_function(x))(point), of_function(point))
    with pytest.raises(TypeMismatch, match="variables in wrt"):
        symdnn.grad(cost)


@pytest.mark.parametrize("derivative", [symdnn.grad, symdnn.jacobian, symdnn.hessian])
def test_argnums_is_another_name_of_wrt(derivative):
    def f(a, b):
        return (a**2 * T.sin(b)).sum()

    values = np.array([1.0, -2.0]), np.array([0.5, 3.0])
    for which in (1, (0, 1), "b"):
        found, wanted = derivative(f, argnums=which)(*values), derivative(f, which)(*values)
        np.testing.assert_equal(found, wanted)
    x = T.dvector("x")
    with pytest.raises(TypeMismatch, match=r"(?i)variable"):
        derivative((x**2).sum(), argnums=0)


def test_errors_say_what_was_wanted():
    with pytest.raises(NonDifferentiable, match="must be a scalar"):
        symdnn.grad(lambda x: x)(np.ones(3))
    with pytest.raises(NonDifferentiable, match="has_aux"):
        symdnn.grad(lambda x: (x.sum(), x))(np.ones(3))
    with pytest.raises(ArgumentError, match="no argument 2"):
        symdnn.grad(lambda x: x, 2)(1.0)
    with pytest.raises(TypeMismatch, match="tangents"):
        symdnn.jvp(lambda x: x["a"], ({"a": 1.0},), ({"b": 1.0},))
    with pytest.raises(TypeMismatch, match=r"tangents\[0\]"):
        symdnn.jvp(lambda x: x, (np.ones(3),), (1.0,))


def test_linear_functions_keep_what_they_need_and_pass_through_jit(rng):
    x = rng.normal(size=4)

    @symdnn.jit
    def forward(x):
        return symdnn.vjp(lambda x: {"a": T.exp(x), "b": (x.sum(),)}, x)

    _, pull_back = forward(x)
    for seed in ({"a": np.ones(4), "b": (2.0,)}, {"a": np.zeros(4), "b": (1.0,)}):
        wanted = seed["a"] * np.exp(x) + seed["b"][0]
        np.testing.assert_allclose(pull_back(seed)[0], wanted, rtol=1e-12)
        np.testing.assert_allclose(
            symdnn.jit(lambda p, s: p(s)[0] * 2)(pull_back, seed), 2 * wanted, rtol=1e-12
        )
    w = symdnn.shared(np.float64(3))
    _, derivative = symdnn.linearize(lambda x: x * w, 2.0)
    w.set_value(5.0)
    assert derivative(1.0) == 3, "the derivative is that at the time"


def test_updates_pass_through_derivatives():
    w = symdnn.shared(np.float64(1), "w")

    @symdnn.jit
    def counted(x):
        return x * x * w, {w: w + x}

    assert symdnn.grad(counted)(3.0) == 6
    assert w.get_value() == 4
    assert symdnn.grad(counted)(1.0) == 8
    assert w.get_value() == 5


def test_a_function_is_not_kept_alive_by_its_derivatives():
    def f(x):
        return x * 2

    assert symdnn.jvp(f, (1.0,), (1.0,))[1] == 2
    alive = weakref.ref(f)
    del f
    gc.collect()
    assert alive() is None


# -- gradients of the user's own ------------------------------------------------------------------


def test_custom_gradient_replaces_the_own_one(rng):
    @symdnn.custom_gradient
    def clipped(x, limit):
        return x * 1, lambda g: (T.clip(g, -limit, limit), None)

    a = np.array([0.5, 10.0, -10.0])
    slope = symdnn.grad(lambda x: (clipped(x, 2.0) * a).sum())(np.ones(3))
    assert slope.tolist() == [0.5, 2, -2]
    np.testing.assert_array_equal(clipped(a, 2.0), a)


def test_custom_gradient_of_trees_closures_and_loops(rng):
    calls = []

    def model(p, scale):
        @symdnn.custom_gradient
        def scaled(p):
            e = T.exp(p["a"])

            def backward(g):
                calls.append(1)
                return {"a": g[0] * e * scale * 100, "b": g[1] * 0}

            return (e * scale, p["b"]), backward

        return scaled(p)

    x, s = T.dscalar("x"), T.dscalar("s")
    # The function is used in a loop, where the variable that it closes over is another one.
    out, _ = symdnn.scan(lambda v: model({"a": v, "b": v}, s + 1)[0], outputs_info=[x], n_steps=2)
    f = symdnn.function([x, s], [out[-1], symdnn.grad(out[-1], x)])
    value, slope = f(0.1, -0.5)
    once = 0.5 * np.exp(0.1)
    assert np.isclose(value, 0.5 * np.exp(once))
    assert calls
    assert np.isclose(slope, 100 * once * 100 * 0.5 * np.exp(once))


def test_custom_gradient_has_second_derivatives_and_forward_mode():
    @symdnn.custom_gradient
    def cube(x):
        return x**3, lambda g: g * 5 * x**2  # not its derivative

    assert symdnn.grad(cube)(2.0) == 20
    assert symdnn.grad(symdnn.grad(cube))(2.0) == 20
    assert symdnn.jvp(cube, (2.0,), (1.0,))[1] == 20
    with pytest.raises(TypeMismatch, match="pair"):
        symdnn.custom_gradient(lambda x: x)(1.0)
    with pytest.raises(TypeMismatch, match="tuple of 2 gradients"):
        symdnn.custom_gradient(lambda x, y: (x, lambda g: g))(1.0, 2.0)


def test_jacobians_of_functions_have_the_trees_of_results_and_arguments(rng):
    x, b = rng.normal(size=(2, 3)), rng.normal(size=3)

    def f(p, c):
        return {"y": T.tanh(p["w"]) * p["b"] + c, "s": (p["w"] ** 2).sum()}

    p = {"w": x, "b": b}
    found = symdnn.jacobian(f, (0, 1))(p, 2 * b)
    slope = (1 - np.tanh(x) ** 2) * b
    want = slope[:, :, None, None] * np.einsum("ik,jl->ijkl", np.eye(2), np.eye(3))
    np.testing.assert_allclose(found["y"][0]["w"], want, rtol=1e-12)
    np.testing.assert_allclose(found["y"][0]["b"], np.tanh(x)[:, :, None] * np.eye(3), rtol=1e-12)
    np.testing.assert_allclose(found["y"][1], np.broadcast_to(np.eye(3), (2, 3, 3)))
    np.testing.assert_allclose(found["s"][0]["w"], 2 * x)
    assert found["s"][1].tolist() == [0, 0, 0]
    rows, aux = symdnn.jacobian(lambda v: (v**2, v.sum()), has_aux=True)(b)
    np.testing.assert_allclose(rows, np.diag(2 * b))
    np.testing.assert_allclose(aux, b.sum())


def test_hessians_of_functions_have_the_tree_of_the_arguments_twice(rng):
    w, c = rng.normal(size=(2, 2)), rng.normal(size=2)
    found = symdnn.hessian(lambda w, c: (T.dot(w, c) ** 2).sum(), (0, 1))(w, c)
    np.testing.assert_allclose(found[1][1], 2 * w.T @ w, rtol=1e-12)
    want = 2 * np.einsum("ik,j,l->ijkl", np.eye(2), c, c)
    np.testing.assert_allclose(found[0][0], want, rtol=1e-12)
    np.testing.assert_allclose(found[0][1], np.moveaxis(found[1][0], 0, -1), rtol=1e-12)
    each = symdnn.vmap(symdnn.hessian(lambda v: (v**3).sum()))(T.as_tensor_variable(w)).eval()
    np.testing.assert_allclose(each, [np.diag(6 * row) for row in w])
    with pytest.raises(TypeMismatch, match="variables in wrt"):
        symdnn.jacobian(T.dvector())


def drawing(v, stream):
    """As many draws as the argument has numbers: their state advances by its size."""
    return v * stream.normal(v.shape, dtype="float64")


def test_functions_that_draw_by_the_shapes_of_arguments_are_differentiated(rng):
    stream, x = RandomStream(3), rng.normal(size=(2, 3))
    f = symdnn.jit(symdnn.value_and_grad(lambda v: drawing(v, stream).sum()))
    found = [f(x) for _ in range(2)]
    for value, slope in found:
        np.testing.assert_allclose(value, (slope * x).sum())
    assert found[0][0] != found[1][0]
    once = symdnn.jit(lambda x: symdnn.jvp(lambda v: drawing(v, stream), (x,), (x,)))
    np.testing.assert_allclose(*once(x))
    each = symdnn.vmap(lambda v: symdnn.grad(lambda u: drawing(u, stream).sum())(v), 0, 0,
                       randomness="different")  # fmt: skip
    assert len(np.unique(symdnn.jit(each)(x))) == 6

    @symdnn.custom_gradient
    def doubled(v):
        m = stream.normal(v.shape, dtype="float64")
        return v * m, lambda g: 2 * g * m

    value, slope = symdnn.jit(symdnn.value_and_grad(lambda v: doubled(v).sum()))(x)
    np.testing.assert_allclose(2 * value, (slope * x).sum())


def test_draws_by_the_shapes_of_a_loop_need_no_updates_to_be_passed(rng):
    stream, x = RandomStream(3), rng.normal(size=(3, 2))
    f = symdnn.jit(lambda x: symdnn.scan(lambda v: drawing(v, stream), sequences=[x])[0])
    found = np.stack([f(x) / x, f(x) / x])
    assert len(np.unique(found.round(9))) == 12


@pytest.mark.parametrize("tree", [lambda v: v, lambda v: {"a": v}], ids=["leaf", "dict"])
def test_derivatives_of_other_shapes_are_refused(tree):
    x, short, shape = np.arange(4.0), np.ones(3), r"shape \(4,\).*got \(3,\)"
    double = lambda v: {"b": leaf(v) * 2}  # noqa: E731
    with pytest.raises(ShapeMismatch, match=shape):
        symdnn.jvp(double, (tree(x),), (tree(short),))
    with pytest.raises(ShapeMismatch, match=shape):
        symdnn.hvp(lambda v: (leaf(v) ** 2).sum(), (tree(x),), (tree(short),))
    with pytest.raises(ShapeMismatch, match=shape):
        symdnn.linearize(double, tree(x))[1](tree(short))
    with pytest.raises(ShapeMismatch, match=shape):
        symdnn.vjp(double, tree(x))[1]({"b": short})


def leaf(v):
    return v["a"] if isinstance(v, dict) else v


@pytest.mark.parametrize("derivative", [symdnn.jvp, symdnn.hvp])
def test_primals_are_a_tuple(derivative):
    with pytest.raises(ArgumentError, match=r"such as \(x,\), got ndarray"):
        derivative(lambda v: (v * 2).sum(), np.arange(4.0), np.arange(4.0))


def test_a_gradient_of_ones_own_has_the_type_of_its_argument():
    whole = symdnn.custom_gradient(lambda v: (v.sum(), lambda g: g))
    with pytest.raises(TypeMismatch, match=r"backward of .*gradient 0: wanted the type float64"):
        symdnn.grad(whole)(np.arange(4.0))
    part = symdnn.custom_gradient(
        lambda p: (p["a"].sum(), lambda g: ({"a": g + p["a"], "n": None},))
    )
    slopes = symdnn.grad(part)({"a": np.arange(3.0), "n": np.float64(2)})
    np.testing.assert_array_equal(slopes["a"], [1, 2, 3])
    assert slopes["n"] == 0
    wide = symdnn.custom_gradient(lambda v: (v.sum(), lambda g: g * np.ones(4)))
    assert symdnn.grad(wide)(np.arange(4, dtype="float32")).dtype == "float32"


@pytest.mark.parametrize("value", [3, np.int64(3), np.arange(3)])
@pytest.mark.parametrize("slope", [symdnn.grad, symdnn.value_and_grad, symdnn.hessian])
def test_a_result_of_whole_numbers_has_no_derivative(slope, value):
    """Zeros would be taken for the derivative at the float that was meant."""
    with pytest.raises(NonDifferentiable, match=r"2\.0 in place of 2"):
        slope(lambda v: T.sum(v * v))(value)


def test_whole_numbers_count_as_floats_where_the_result_is_one():
    found = symdnn.grad(lambda p: p["x"] * p["n"])({"x": np.float64(2), "n": 3})
    assert (found["x"], found["n"]) == (3, 2)
    assert symdnn.grad(lambda v: v * 2.5)(3) == 2.5


@pytest.mark.parametrize("floatx", ["float32", "float64"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("form", ["number", "constant"])
def test_python_numbers_beside_variables(form, dtype, floatx):
    """They keep their digits, and take the dtype of the arrays that they meet."""
    with symdnn.config.change_flags(floatX=floatx):
        x = T.scalar("x", dtype)
        number = 2.1 if form == "number" else T.constant(2.1)
        value, slopes = symdnn.value_and_grad(lambda t, u: t * t * u, argnums=(0, 1))(number, x)
        sums = [value, slopes[1], x + slopes[0]]
        assert [v.type.dtype for v in sums] == [dtype] * 3
        found = symdnn.function([x], sums)(np.asarray(3, dtype))
        wanted = [2.1 * 2.1 * 3, 2.1 * 2.1, 3 + 2 * 2.1 * 3]
        np.testing.assert_allclose(found, wanted, 1e-6 if dtype == "float32" else 1e-14)
        one = T.constant(1.0)
        along = symdnn.jvp(lambda t: t * x, (T.constant(2.1),), (one,))[1]
        twice = symdnn.hessian(lambda t, u: t * t * u)(number, x)
        assert symdnn.function([x], [along, twice])(np.asarray(3, dtype)) == [3, 6]


def test_python_numbers_beside_variables_in_programs_unchanged():
    with symdnn.config.change_flags(cast_policy="custom"):
        x = T.fscalar("x")
        for number in (2, 2.5, T.constant(2), T.constant(2.5)):
            wanted = (number * x).type.dtype
            value, slope = symdnn.value_and_grad(lambda t, u: t * u, argnums=1)(number, x)
            assert (value.type.dtype, slope.type.dtype) == (wanted, "float32")
            assert slope.eval({x: 3.0}) == (2.5 if "5" in str(number) else 2)


def test_a_derivative_by_a_python_number_is_one():
    step = symdnn.jit(lambda t, u: u - symdnn.grad(lambda t, u: t * t * u)(t, u) * u)
    assert step(2.5, np.float32(3)).dtype == "float32"
    assert step(2.5, np.float64(3)) == 3 - 2 * 2.5 * 3 * 3
