"""Loops over rows of two to four elements, of which an iteration has one, have NumPy's results."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.cpu.elementwise import elementwise
from tests.seeded import new_rng

PROGRAMS = {
    "by a row": lambda m, x, d, s, c: (x - s) * s,
    "the other way": lambda m, x, d, s, c: x[:, ::-1] + x,
    "from the last row": lambda m, x, d, s, c: x[::-1] * s,
    "both": lambda m, x, d, s, c: x[::-1, ::-1] - d[:, None],
    "of a vector and a row": lambda m, x, d, s, c: d[:, None] * s,
    "a row the other way": lambda m, x, d, s, c: x + s[::-1],
    "chosen": lambda m, x, d, s, c: m.where(c[:, None], x, x[:, ::-1]),
    "compared": lambda m, x, d, s, c: x > s,
    "two results": lambda m, x, d, s, c: [x + s, x * s],
    "in parts": lambda m, x, d, s, c: x[40:] * s - x[:-40],
}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64", "int16", "bool"])
def test_programs(dtype, n, monkeypatch):
    taken = []
    own = elementwise._pixels
    monkeypatch.setattr(elementwise, "_pixels", lambda *a: taken.append(own(*a)) or taken[-1])
    rng = new_rng()
    shapes = ((203, n), (203,), (n,))
    given = [rng.integers(0, 2 if dtype == "bool" else 9, s).astype(dtype) for s in shapes]
    given.append(rng.random(203) > 0.5)
    xs = [T.tensor(dtype, s) for s in shapes] + [T.tensor("bool", (203,))]
    for name, program in PROGRAMS.items():
        if dtype == "bool" and name in ("by a row", "both", "in parts"):
            continue  # NumPy subtracts no bools
        f = symdnn.function(xs, program(T, *xs), on_unused_input="ignore")
        found, want = f(*given), program(np, *given)
        for a, b in zip(found, want) if isinstance(want, list) else [(found, want)]:
            np.testing.assert_array_equal(a, b, err_msg=name)
            assert a.dtype == b.dtype, name
    assert sum(t is not None for t in taken) >= 3


@pytest.mark.usefixtures("always")
def test_a_result_in_the_memory_of_an_operand():
    """Its rows are read before they are written."""
    x, s = T.tensor("float32", (500, 3)), T.tensor("float32", (3,))
    f = symdnn.function([x, s], T.exp(x.dot(np.eye(3, dtype="float32"))[:, ::-1] + s) * s)
    rng = new_rng()
    a, b = (rng.normal(size=v.type.shape).astype("float32") for v in (x, s))
    np.testing.assert_allclose(f(a, b), np.exp(a[:, ::-1] + b) * b, 1e-5)
