"""``symdnn.control``: loops and choices against Python's own, their derivatives and errors."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import control
from symdnn.errors import (
    AxisError,
    InputError,
    OptionError,
    StateMismatch,
    SymbolicValueError,
    TypeMismatch,
)


def slope(f, x, step=1e-6):
    """The derivative of a function of a float64 scalar by central differences."""
    return (f(np.float64(x + step)) - f(np.float64(x - step))) / (2 * step)


def both_modes(f, x):
    """The derivative by reverse and by forward mode, and the second one by both."""
    x = np.float64(x)
    forward = lambda x: symdnn.jvp(f, (x,), (np.float64(1),))[1]  # noqa: E731
    return symdnn.grad(f)(x), symdnn.jit(forward)(x), symdnn.grad(forward)(x)


def test_while_loop_of_a_tree():
    def power(limit):
        def f(x):
            start = {"x": x, "n": 0}
            more = lambda v: T.abs(v["x"]) < limit  # noqa: E731
            return control.while_loop(more, lambda v: {"x": v["x"] * x, "n": v["n"] + 1}, start)

        return f

    f = symdnn.jit(power(1000.0))
    for x in (3.0, -1.7, 2000.0):
        n, value = 0, x
        while abs(value) < 1000:
            n, value = n + 1, value * x
        found = f(np.float64(x))
        assert int(found["n"]) == n
        assert np.isclose(found["x"], value)
        once = symdnn.grad(lambda x: power(1000.0)(x)["x"])(np.float64(x))
        assert np.isclose(once, (n + 1) * x**n)


@pytest.mark.cpu
def test_while_loop_has_derivatives_in_both_modes():
    def f(x):
        value = control.while_loop(
            lambda v: v[0].sum() < 50, lambda v: (v[0] * v[1] + T.sin(v[0]), v[1] + 0.1), (x, 1.5)
        )
        return value[0].sum()

    reverse, forward, second = both_modes(f, 0.8)
    wanted = slope(symdnn.jit(f), 0.8)
    assert np.isclose(reverse, wanted)
    assert np.isclose(forward, wanted)
    assert np.isclose(second, slope(symdnn.grad(f), 0.8), rtol=1e-5)


@pytest.mark.cpu
def test_while_loop_with_a_bound_and_without_steps():
    count = symdnn.jit(
        lambda x: control.while_loop(lambda v: v[1] < 7, lambda v: (v[0] + x, v[1] + 1), (0, 0))
    )
    assert [int(v) for v in count(3)] == [21, 7]
    f = symdnn.jit(
        lambda x, n: control.while_loop(lambda v: v < 100, lambda v: 2 * v, x, max_steps=n)
    )
    assert [float(f(1.0, n)) for n in (0, 3, 50)] == [1, 8, 128]
    assert f(500.0, 50) == 500
    assert symdnn.grad(lambda x: control.while_loop(lambda v: v < 1, lambda v: 2 * v, x))(5.0) == 1


@pytest.mark.cpu
@pytest.mark.parametrize("n", [0, 1, 4])
def test_fori_loop(n):
    def f(x, n):
        def body(i, v):
            a, b = v
            return T.sin(a) + i * b, b * a

        return control.fori_loop(0, n, body, (x, x))[1]

    def by_hand(x):
        a = b = x
        for i in range(n):
            a, b = np.sin(a) + i * b, b * a
        return b

    assert np.isclose(symdnn.jit(f)(np.float64(0.7), n), by_hand(0.7))
    reverse, forward, second = both_modes(lambda x: f(x, n), 0.7)
    assert np.isclose(second, slope(symdnn.grad(lambda x: f(x, n)), 0.7))
    assert np.isclose(reverse, slope(by_hand, 0.7))
    assert np.isclose(forward, reverse)
    lower = symdnn.jit(lambda a, b: control.fori_loop(a, b, lambda i, v: v + i, 0))
    assert [int(lower(a, b)) for a, b in ((2, 5), (5, 2), (-3, 1))] == [9, 0, -6]


def test_bounds_of_fori_loop_may_differ_between_the_calls_of_a_vmap(rng):
    x, low, high = rng.normal(size=(3, 4)), np.array([0, 1, 5]), np.array([3, 1, 7])

    def f(x, a, b):
        return control.fori_loop(a, b, lambda i, v: T.sin(v) + 0.125 * i, x)

    def by_hand(v, a, b):
        slope = np.ones_like(v)
        for i in range(a, b):
            v, slope = np.sin(v) + 0.125 * i, slope * np.cos(v)
        return v, slope

    each = [by_hand(*given) for given in zip(x, low, high)]
    whole = symdnn.jit(symdnn.vmap(f))
    np.testing.assert_allclose(whole(x, low, high), [v for v, _ in each])
    slope = symdnn.jit(symdnn.grad(lambda *given: symdnn.vmap(f)(*given).sum()))
    np.testing.assert_allclose(slope(x, low, high), [s for _, s in each])
    shared = symdnn.vmap(symdnn.grad(lambda x, n: f(x, 1, n).sum()), in_axes=(0, None))
    want = [by_hand(v, 1, 4)[1] for v in x]
    np.testing.assert_allclose(symdnn.jit(shared)(x, np.int64(4)), want)


def test_the_dtype_of_a_carried_number_follows_the_arrays(rng):
    x = rng.normal(size=3).astype("float32")
    for zero in (0.0, np.float32(0)):
        f = symdnn.jit(lambda x, zero=zero: control.fori_loop(0, 3, lambda i, v: v + x.sum(), zero))
        assert f(x).dtype == np.float32
    given = symdnn.jit(lambda x, z: control.fori_loop(0, 3, lambda i, v: v + x.sum(), z))
    assert given(x, 0.0).dtype == np.float32
    with pytest.raises(StateMismatch, match=r"the value\['a'\]"):
        symdnn.jit(lambda n: control.fori_loop(0, 3, lambda i, v: {"a": v["a"] * 0.5}, {"a": n}))(
            np.int64(3)
        )


@pytest.mark.parametrize("begin", [1.0, 1])
def test_a_carried_number_keeps_the_digits_that_float64_has(rng, begin):
    """Literals that meet only the number, too: it is one of Python's until it meets an array."""
    z = rng.normal(size=5)

    def body(c, x):
        return c * 0.9 + 0.1, c * 0.3 * x

    def by_hand(c, x):
        total = 0.0
        for v in x:
            c, y = body(c, v)
            total += y
        return c, total

    (c, total), _ = symdnn.jit(
        lambda z: control.scan(
            lambda c, x: ((body(c[0], x)[0], c[1] + body(c[0], x)[1]), None), (begin, 0.0), z
        )
    )(z)
    np.testing.assert_allclose(total, by_hand(begin, z)[1], rtol=1e-15)
    assert c.dtype == "float32"  # alone it is a Python float
    last = symdnn.jit(lambda z: control.fori_loop(0, 3, lambda i, c: c * 0.9 + z[0], begin))(z)
    wanted = ((begin * 0.9 + z[0]) * 0.9 + z[0]) * 0.9 + z[0]
    np.testing.assert_allclose(last, wanted, rtol=1e-15)
    x = T.dvector("x")
    found, _ = symdnn.scan(
        lambda x, c, y: (c * 0.9, y + c * x * 0.3), x, [begin, T.constant(np.float64(0))]
    )
    c, wanted = begin, 0.0
    for v in z:
        c, wanted = c * 0.9, wanted + c * v * 0.3
    np.testing.assert_allclose(symdnn.function([x], found[1][-1])(z), wanted, rtol=1e-15)
    narrow = lambda x: control.fori_loop(0, 3, lambda i, c: c * x[0], float(begin))  # noqa: E731
    assert symdnn.jit(narrow)(np.ones(2, "float32")).dtype == "float32"


@pytest.mark.cpu
def test_scan_both_ways(rng):
    xs = {"u": rng.normal(size=4), "v": rng.normal(size=(4, 2))}

    def f(c, x):
        c = {"c": c["c"] * x["u"] + x["v"].sum()}
        return c, (c["c"], x["v"] * c["c"])

    for reverse in (False, True):
        c, ys = 2.0, []
        order = range(4)[::-1] if reverse else range(4)
        for k in order:
            c = c * xs["u"][k] + xs["v"][k].sum()
            ys.append(c)
        g = symdnn.jit(lambda xs, r=reverse: control.scan(f, {"c": 2.0}, xs, reverse=r))
        last, (first, second) = g(xs)
        np.testing.assert_allclose(last["c"], c)
        np.testing.assert_allclose(first, ys[::-1] if reverse else ys)
        np.testing.assert_allclose(second, xs["v"] * np.asarray(first)[:, None])
    last, ys = symdnn.jit(lambda x, n: control.scan(lambda c, _: (c * x, c), x, length=n))(2.0, 3)
    assert last == 16
    assert ys.tolist() == [2, 4, 8]


def test_a_body_draws_anew_in_each_step_and_each_call():
    stream = T.random.RandomStream(3)
    f = symdnn.jit(lambda: control.scan(lambda c, _: (c, stream.uniform(())), 0.0, length=4)[1])
    draws = np.concatenate([f(), f()])
    assert len(set(draws)) == 8


@pytest.mark.cpu
def test_updates_in_a_body_and_in_branches():
    w, seen = symdnn.shared(np.float64(0), "w"), symdnn.shared(np.int64(0), "seen")

    @symdnn.jit
    def count(x):
        return x + w, {w: w + x}

    f = symdnn.jit(lambda n: control.fori_loop(0, n, lambda i, v: count(v) * 1, np.float64(1)))
    value, state = 1.0, 0.0
    for _ in range(3):
        value, state = value + state, state + value
    assert f(3) == value
    assert w.get_value() == state

    @symdnn.jit
    def mark(x):
        return x, {seen: seen + 1}

    g = symdnn.jit(lambda x: control.cond(x > 0, mark, lambda x: -x, x))
    assert [float(g(v)) for v in (1.0, -1.0, 2.0)] == [1, 1, 2]
    assert seen.get_value() == 2


def test_switch_clamps_and_computes_one_branch():
    def branch(k):
        return lambda x: {"y": x * k}

    f = symdnn.jit(lambda i, x: control.switch(i, [branch(k) for k in range(5)], x))
    assert [float(f(i, 2.0)["y"]) for i in (-3, 0, 1, 2, 3, 4, 9)] == [0, 0, 2, 4, 6, 8, 8]
    slopes = symdnn.grad(lambda x, i: control.switch(i, [T.sin, T.cos, T.exp], x))
    wanted = [np.cos(0.5), -np.sin(0.5), np.exp(0.5)]
    np.testing.assert_allclose([slopes(np.float64(0.5), i) for i in range(3)], wanted)


def test_errors_say_what_was_wanted():
    x = T.dvector("x")
    with pytest.raises(TypeMismatch, match="branches of one structure"):
        control.cond(x[0] > 0, lambda x: (x, x), lambda x: x, x)
    with pytest.raises(SymbolicValueError, match=r"T\.eq"):
        control.cond(x[0] == 0, lambda: 1.0, lambda: 2.0)
    with pytest.raises(TypeMismatch, match="write `if`"):
        control.cond(True, lambda: 1.0, lambda: 2.0)
    with pytest.raises(TypeMismatch, match="structure"):
        control.fori_loop(0, 3, lambda i, v: (v, v), x)
    with pytest.raises(TypeMismatch, match="a scalar"):
        control.while_loop(lambda v: v > 0, lambda v: v, x)
    with pytest.raises(OptionError, match="xs or length"):
        control.scan(lambda c, x: (c, x), x)
    with pytest.raises(TypeMismatch, match="pair"):
        control.scan(lambda c, x: c, x, x)
    with pytest.raises(OptionError, match="one branch"):
        control.switch(0, [])
    with pytest.raises(SymbolicValueError, match="the body of fori_loop"):
        control.fori_loop(0, 3, lambda i, v: v if i > 1 else -v, x)
    with pytest.raises(AxisError):
        control.associative_scan(lambda a, b: a + b, x, axis=1)


@pytest.mark.parametrize("compiled", ["auto", "always"])
def test_a_loop_in_a_loop_in_a_branch(compiled):
    """On a GPU the inner loop's steps run on the host, and its states are on the device."""

    def triangle(n):
        return control.fori_loop(
            0, n, lambda i, v: v + control.fori_loop(0, i + 1, lambda j, u: u + 1, 0), 0
        )

    f = symdnn.jit(lambda n: control.cond(n > 2, triangle, lambda n: -n, n))
    with symdnn.config.change_flags({"cpu.compile": compiled}):
        assert [int(f(n)) for n in (1, 2, 5, 2, 40)] == [-1, -2, 15, -2, 820]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("loop", ["fori", "while", "scan"])
def test_a_number_that_is_an_argument_takes_the_dtype_that_follows(rng, loop, dtype):
    """In a function of ``jit`` as one that is written there."""
    x = rng.uniform(0.1, 0.2, 3).astype(dtype)
    f = {
        "fori": lambda c, x: control.fori_loop(0, 3, lambda i, c: c + x[i], c),
        "while": lambda c, x: control.while_loop(lambda c: c < 0.25, lambda c: c + x[0], c),
        "scan": lambda c, x: control.scan(lambda c, v: (c + v, c), c, x),
    }[loop]
    given, written = symdnn.jit(f)(0.1, x), symdnn.jit(lambda x: f(0.1, x))(x)
    pairs = zip(given, written) if loop == "scan" else [(given, written)]
    for a, b in pairs:
        assert a.dtype == b.dtype == dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("begin", "dtype"), [(0, "float32"), (0.0, "float32"), (np.float64(0), "float64")]
)
def test_a_number_of_pythons_takes_the_dtype_that_follows_and_one_of_numpys_keeps_its_own(
    begin, dtype
):
    xs = np.ones(3, "float32")
    f = symdnn.jit(lambda xs: control.scan(lambda c, x: (c + x, x), begin, xs)[0])
    last = symdnn.scan(lambda x, c: x + c, T.fvector(), begin)[0]
    assert (f(xs).dtype, last.type.dtype) == (dtype, dtype)
    with pytest.raises(StateMismatch, match="float64"):
        control.scan(lambda c, x: (c.astype("float32") + x, x), np.float64(0), xs)


def test_functions_of_other_arguments_are_errors_that_list_them():
    wrong = {
        r"while_loop: cond_fun: .* \(value\)": lambda: control.while_loop(
            lambda: True, lambda v: v, 1.0
        ),
        r"while_loop: body_fun: .* \(value\)": lambda: control.while_loop(
            lambda v: v < 3, lambda i, v: v, 1.0
        ),
        r"fori_loop: .* \(i, value\)": lambda: control.fori_loop(0, 3, lambda v: v, 1.0),
        r"cond: .* \(operand 0\)": lambda: control.cond(T.scalar() > 0, lambda: 1, lambda v: v, 2),
        r"control.scan: .* \(carry, x\)": lambda: control.scan(lambda x: x, 0.0, T.vector()),
    }
    for words, call in wrong.items():
        with pytest.raises(InputError, match=words):
            call()
