"""What functions of arrays refuse, and how arguments to differentiate are named."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import control
from symdnn.errors import (
    ArgumentError,
    InputError,
    NonDifferentiable,
    OptionError,
    StateMismatch,
    SymbolicValueError,
    TypeMismatch,
)

V = np.array([1.0, 2.0, 4.0])


@pytest.mark.parametrize(
    "call", [((V, V + 1), {}), ((V,), {"y": V + 1}), ((), {"x": V, "y": V + 1})]
)
def test_an_argument_is_named_however_it_is_given(call):
    args, named = call

    def f(x, y):
        return (x**2 * y).sum()

    np.testing.assert_allclose(symdnn.grad(f, "y")(*args, **named), V**2)
    both = symdnn.grad(f, ("y", "x"))(*args, **named)
    np.testing.assert_allclose(both[1], 2 * V * (V + 1))
    np.testing.assert_allclose(symdnn.jacobian(lambda x, y: x * y, "y")(*args, **named), np.diag(V))


def test_a_name_beside_static_arguments_and_one_that_there_is_not():
    power = symdnn.jit(lambda x, n: x**n, static_argnames="n")
    assert symdnn.grad(power, "x")(2.0, 3) == 12
    with pytest.raises(ArgumentError, match="no argument 'z'"):
        symdnn.grad(lambda x: x, "z")(2.0)
    with pytest.raises(ArgumentError, match="no argument 'x'"):
        symdnn.grad(lambda *x: x[0], "x")(2.0)


@pytest.mark.parametrize("transform", [symdnn.grad, symdnn.jacobian, symdnn.hessian])
def test_whole_results_have_no_derivatives(transform):
    with pytest.raises(NonDifferentiable, match="whole numbers"):
        transform(lambda x: x**2)(3)
    if transform is symdnn.jacobian:
        with pytest.raises(NonDifferentiable, match="whole numbers"):
            transform(lambda x: {"a": x * 1.5, "b": x * 2})(np.arange(3))


@pytest.mark.parametrize("bounds", [(0, 2.5), (0.0, 3), (0, np.arange(2))])
def test_bounds_of_loops_are_whole_numbers(bounds):
    with pytest.raises(TypeMismatch, match="fori_loop: wanted whole numbers as bounds"):
        symdnn.jit(lambda x: control.fori_loop(*bounds, lambda i, v: v + i, x))(1.0)


def test_in_asks_for_a_value():
    for x in (T.dvector(), T.constant(V)):
        with pytest.raises(SymbolicValueError, match="T.eq"):
            assert 1.0 in x


def test_only_shared_variables_are_updated():
    with pytest.raises(TypeMismatch, match="shared variables alone"):
        symdnn.jit(lambda x: (x, {x: x + 1}))(1.0)


LOOPS = {
    "while_loop": lambda x: control.while_loop(lambda s: s.sum() > 0, lambda s: s.sum(), x),
    "fori_loop": lambda x: control.fori_loop(0, 3, lambda i, s: s.sum(), x),
    "scan": lambda x: control.scan(lambda s, e: (s.sum(), e), x, x),
}


@pytest.mark.parametrize("name", list(LOOPS))
def test_a_value_of_another_type_names_the_loop(name):
    with pytest.raises(StateMismatch, match=f"^{name}: the value: wanted a next value"):
        symdnn.jit(LOOPS[name])(V)


STEP, ZERO = (lambda *values: values[0]), T.scalar("zero")
SWAPPED = {
    "scan: wanted a function of a step's values": lambda: symdnn.scan(ZERO, STEP),
    "scan: wanted a function of": lambda: control.scan(ZERO, STEP, T.vector()),
    "fori_loop: wanted a function of": lambda: control.fori_loop(0, 3, ZERO, STEP),
    "while_loop: wanted a function of": lambda: control.while_loop(ZERO, STEP, STEP),
}


@pytest.mark.parametrize("message", SWAPPED)
def test_a_value_in_the_place_of_a_function_is_named(message):
    with pytest.raises(InputError, match=f"{message}.*, got zero"):
        SWAPPED[message]()


def test_arguments_in_the_order_of_other_programs():
    with pytest.raises(InputError, match="shared: wanted a string as its name, got ndarray"):
        symdnn.shared("w", V)
    for device in ("cuda", "cuda0", "cpu", "gpu"):
        with pytest.raises(OptionError, match=r"use Mode\(target='cuda'\)"):
            symdnn.Mode(device)
    symdnn.verify_grad(lambda x: (x**2).sum(), V)
    symdnn.verify_grad(lambda x: (x**2).sum(), [V])
