"""Loops with functions of the C library, which do not slow down the functions beside them."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.cpu.ir.scalar_ir import Printer
from symdnn.ops.core.scalar import Builder
from tests.cpu.harness import needs_compiler
from tests.seeded import new_rng

CALLED = {"tgamma": T.gamma}
VARIANTS = "vector-function-abi-variant"


def text_of(*names):
    """The IR of a product of functions of one number."""
    b = Builder(["float64"])
    found = b.input(0).call(names[0])
    for name in names[1:]:
        found = found * b.input(0).call(name)
    printer = Printer(b.program([found]))
    printer.emit(["%x"])
    return "\n".join([*printer.declared, *printer.lines])


@pytest.mark.parametrize("name", CALLED)
def test_they_have_forms_for_vectors_beside_long_functions(name):
    assert text_of(name, "digamma").count(VARIANTS) == 1
    assert f"@{name}_lanes8(<8 x double> %a0)" in text_of("erf", name)
    for alone in ([name], [name, "exp"], ["erf", "digamma"]):
        assert "lanes" not in text_of(*alone)


@needs_compiler
@pytest.mark.parametrize("name", CALLED)
@pytest.mark.parametrize("size", [1, 7, 64, 1003])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_vectors_have_the_numbers_of_loops_of_their_own(name, size, dtype):
    x = T.TensorType(dtype, (None,))("x")
    a = new_rng().uniform(0.3, 5, size).astype(dtype)
    with symdnn.config.change_flags(**{"cpu.compile": "always"}):
        both = symdnn.function([x], CALLED[name](x) * T.psi(x))(a)
        parts = [symdnn.function([x], f(x))(a) for f in (CALLED[name], T.psi)]
    np.testing.assert_allclose(
        both, parts[0] * parts[1], rtol=2e-7 if dtype == "float32" else 4e-16
    )
    assert symdnn.function([x], CALLED[name](x) * T.erf(x))(a * np.nan).shape == a.shape


@needs_compiler
def test_two_arguments():
    x, y = T.dvectors("x", "y")
    a, b = new_rng().uniform(0.3, 2, (2, 37))
    with symdnn.config.change_flags(**{"cpu.compile": "always"}):
        found = symdnn.function([x, y], x**y * T.erf(x) + T.arctan2(x, y))(a, b)
        erf = symdnn.function([x], T.erf(x))(a)
    np.testing.assert_allclose(found, a**b * erf + np.arctan2(a, b), rtol=1e-14)
