"""Inverse functions and powers of complex numbers: as NumPy's, on cuts, at 0 and infinities too."""

import mpmath
import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.ops.core.scalar import Builder
from symdnn.ops.elementwise import complex_inverses as inverses

FUNCTIONS = {
    "arcsin": inverses.arc_sine,
    "arccos": inverses.arc_cosine,
    "arctan": inverses.arc_tangent,
    "arcsinh": inverses.arc_sine_h,
    "arccosh": inverses.arc_cosine_h,
    "arctanh": inverses.arc_tangent_h,
}
EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, np.inf, -np.inf, np.nan, 1e300, -1e300,
         1e-300, -1e-300, 1e160, -1e-160)  # fmt: skip


def values(function, *numbers):
    """Of a program in float64."""
    b = Builder(["float64"] * 2 * len(numbers))
    pairs = [(b.input(2 * i), b.input(2 * i + 1)) for i in range(len(numbers))]
    parts = [part for z in numbers for part in (z.real.copy(), z.imag.copy())]
    with np.errstate(all="ignore"):
        return b.program(list(function(*pairs))).evaluate(*parts)


def wide(rng):
    """Numbers of all sizes."""
    z = rng.standard_normal(400) + 1j * rng.standard_normal(400)
    return np.concatenate([z, z * 10.0 ** rng.uniform(-9, 9, 400)])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_inverses_are_numpys_with_the_signs_of_zeros(rng, name):
    edges = np.array([complex(a, b) for a in EDGES for b in EDGES])
    z = np.concatenate([edges, wide(rng)])
    first, second = values(FUNCTIONS[name], z)
    with np.errstate(all="ignore"):
        wanted = getattr(np, name)(z)
    for found, part in ((first, wanted.real), (second, wanted.imag)):
        np.testing.assert_allclose(found, part, rtol=1e-13)
        there = ~np.isnan(part)
        np.testing.assert_array_equal(np.signbit(found)[there], np.signbit(part)[there])


@pytest.mark.parametrize(
    ("function", "exact"),
    [(inverses.exponential_less_1, mpmath.expm1), (inverses.logarithm_of_1_more, mpmath.log1p)],
)
def test_near_1_nothing_cancels(rng, function, exact):
    z = (rng.standard_normal(50) + 1j * rng.standard_normal(50)) * 10.0 ** rng.uniform(-12, 0.5, 50)
    first, second = values(function, z)
    with mpmath.workdps(40):
        wanted = np.array([complex(exact(mpmath.mpc(complex(v)))) for v in z])
    np.testing.assert_allclose(first + 1j * second, wanted, rtol=1e-15 * 8)


def test_powers(rng):
    x, y = wide(rng)[:400], rng.standard_normal(400) + 1j * rng.standard_normal(400)
    first, second = values(inverses.power, x, y)
    np.testing.assert_allclose(first + 1j * second, np.power(x, y), rtol=1e-13)
    zero, powers = np.zeros(4, complex), np.array([0, 2, 0.5 + 1j, -1])
    first, second = values(inverses.power, zero, powers)
    np.testing.assert_array_equal(first, [1, 0, 0, np.nan])
    np.testing.assert_array_equal(second, [0, 0, 0, np.nan])


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_a_chain_of_them_is_one_compiled_kernel(rng, dtype):
    z = (rng.standard_normal(1000) + 1j * rng.standard_normal(1000)).astype(dtype)
    x = T.TensorType(dtype, (None,))()
    f = symdnn.function([x], T.arcsin(x) * T.arctan(x) + T.log1p(x) ** 1.5)
    wanted = np.arcsin(z) * np.arctan(z) + np.log1p(z) ** 1.5
    np.testing.assert_allclose(f(z), wanted, rtol=2e-5 if dtype == "complex64" else 1e-12)
    text = symdnn.printing.debugprint(f, file="str")
    assert "numpy" not in text
