"""Floats of integer scalars and Python numbers: of ``floatX``, and exact beside float64."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import control
from symdnn.config import config

PROGRAMS = {
    "a quotient": lambda m, n, d: d * (0.15 / n),
    "an inverse": lambda m, n, d: d + 1 / n,
    "a root": lambda m, n, d: d * m.sqrt(n),
    "logarithms": lambda m, n, d: d - m.log(2 * n + 1) * 0.3 + m.log(200),
    "a size": lambda m, n, d: d * (0.15 / d.shape[0]),
    "a power": lambda m, n, d: d * (n**0.5),
    "a choice": lambda m, n, d: m.where(d > 1.5, d, 1 / n),
    "stacked": lambda m, n, d: m.stack([d[0], 1 / n, m.exp(m.sqrt(n) * 0.1)]),
    "an extreme": lambda m, n, d: m.maximum(d, 1 / n),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_they_keep_their_digits_beside_float64(name):
    f, d = PROGRAMS[name], np.arange(1.0, 4)
    want = f(np, 7, d)
    for n in (T.lscalar("n"), T.iscalar("n")):
        x, y = T.dvector("x"), T.fvector("y")
        made = symdnn.function([n, x], f(T, n, x), on_unused_input="ignore")(7, d)
        assert made.dtype == "float64"
        np.testing.assert_allclose(made, want, 1e-15)
        short = symdnn.function([n, y], f(T, n, y), on_unused_input="ignore")(7, d.astype("f4"))
        assert short.dtype == "float32"
        np.testing.assert_allclose(short, want, 1e-6)
    np.testing.assert_allclose(symdnn.jit(lambda n, d: f(T, n, d))(7, d), want, 1e-15)


def test_alone_they_are_of_floatx():
    n, x = T.lscalar("n"), T.dvector("x")
    y = 0.15 / n
    assert y.dtype == symdnn.function([n], y)(7).dtype == "float32"
    cast = n.astype("float32") * 0.1  # the program says float32
    found = symdnn.function([n, x], x * cast)(7, [1.0])[0]
    assert found == np.float64(np.float32(7) * np.float32(0.1))
    with config.change_flags(cast_policy="custom"):
        assert symdnn.function([n, x], x * (n * 0.1))(3, [1.0]).dtype == "float64"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_counter_of_a_loop_is_a_number(dtype):
    """As of Python's range: it does not widen float32, and loses no digits beside float64."""
    start, within = np.ones(3, dtype), 1e-6 if dtype == "float32" else 1e-15
    bodies = {
        "times": (lambda i, c: c + start * i, 11),
        "divided": (lambda i, c: c + start / (i + 1), 1 + 137 / 60),
        "of numbers": (lambda i, c: c + start * (0.1 / (i + 1)), 1 + 13.7 / 60),
        "a root": (lambda i, c: c + start * T.sqrt(i), 1 + sum(np.sqrt(np.arange(5)))),
        "in vmap": (lambda i, c: c + start[0] * i, 11),
    }
    for name, (body, want) in bodies.items():
        if name == "in vmap":
            lanes = symdnn.vmap(lambda n: control.fori_loop(0, n, body, T.constant(start[0])))  # noqa: B023
            found = symdnn.jit(lanes)(np.array([5, 5]))
        else:
            found = symdnn.jit(lambda v: control.fori_loop(0, 5, body, v))(start)  # noqa: B023
        assert found.dtype == dtype, name
        np.testing.assert_allclose(found, want, within, err_msg=name)
    ints = symdnn.jit(lambda v: control.fori_loop(0, 3, lambda i, c: c * i + 1, v))
    assert ints(np.ones(2, "int32")).dtype == "int32"


def test_the_work_grows_with_the_program():
    n, x = T.iscalar("n"), T.dvector("x")
    small = 0.5 / n
    for _ in range(1200):  # each step reads the last one three times
        small = small * 0.5 + small * small
    assert (x * small).type.dtype == "float64"


BESIDE_INTEGERS = {
    "positions": lambda m, n, r: m.arange(n) / (n - 1.0),
    "angles": lambda m, n, r: r * (2 * 3.25 / n),
    "ranks": lambda m, n, r: m.argsort(r) / (n * 1.0) - 0.5,
    "a root": lambda m, n, r: r / m.sqrt(n),
    "a choice": lambda m, n, r: m.where(r > 1, r, 1 / n),
    "an extreme": lambda m, n, r: m.maximum(n / 2.0, r),
    "scalars": lambda m, n, r: 0.5 * n * (n - 1.0) * n,
    "stacked": lambda m, n, r: m.stack([r[0], n / 2, 3]),
    "bytes": lambda m, n, r: r.astype("int8") * (1.0 / n),
}


@pytest.mark.parametrize("floatx", ["float32", "float64"])
@pytest.mark.parametrize("name", BESIDE_INTEGERS)
def test_beside_integers_they_are_of_floatx(name, floatx):
    """As Python numbers are: ``r * 0.5`` of integers is ``floatX``, so ``r * (0.5 / n)`` is."""
    f, r = BESIDE_INTEGERS[name], np.array([3, 0, 1, 2])
    within = 1e-6 if floatx == "float32" else 1e-15
    with config.change_flags(floatX=floatx):
        found = symdnn.jit(lambda r: f(T, r.shape[0], r))(r)
        assert found.dtype == floatx
        n = T.lscalar("n")
        beside = symdnn.function([n], T.arange(n) * (1 / n) > 1 / (n + 1))
    np.testing.assert_allclose(found, f(np, 4, r), within)
    assert beside(4).tolist() == [False, True, True, True]
    with config.change_flags(cast_policy="custom", floatX=floatx):
        assert (T.lvector("v") * (T.lscalar("n") * 0.5)).dtype == "float64"


def test_integer_scalars_beside_them_keep_their_digits():
    n, x = T.lscalar("n"), T.dvector("x")
    many = 2**26 + 1
    found = symdnn.function([n, x], x * (0.5 * n * (n - 1.0)))(many, [1.0])
    assert found[0] == 0.5 * many * (many - 1.0)
