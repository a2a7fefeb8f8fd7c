"""Chains of ops on complex numbers are one loop over their parts on a CPU."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.ops.lowered.fused import FusedComplex
from tests.seeded import new_rng

CPU = symdnn.Mode(target="cpu")


def normal(*shape, dtype="complex64"):
    rng = new_rng()
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)


def ops(f):
    return [type(n.op).__name__ for n in f.fgraph.toposort()]


CHAINS = {
    "spectrum": lambda xp, x, y, r: xp.real(x * xp.conj(x)),
    "parts": lambda xp, x, y, r: xp.real(x) + xp.imag(y),
    "sum of products": lambda xp, x, y, r: x * y + x / y - y,
    "with real numbers": lambda xp, x, y, r: (x * r + 2) * r,
    "with a complex number": lambda xp, x, y, r: x * 2j + (1 - 3j),
    "functions": lambda xp, x, y, r: xp.exp(x) * xp.sqrt(y) - abs(x),
    "made of real ones": lambda xp, x, y, r: xp.exp(1j * r) * x,
    "choices": lambda xp, x, y, r: xp.where(abs(x) > 1, x * y, -x),
    "tests": lambda xp, x, y, r: xp.isnan(x * y) | (abs(x) > r),
}


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", CHAINS)
def test_chains_are_one_loop_with_the_numbers_of_numpy(name, dtype):
    x, y = (T.tensor(dtype, (None, None), name=n) for n in "xy")
    r = T.tensor("float32" if dtype == "complex64" else "float64", (None, None), name="r")
    chain = CHAINS[name]
    a, b = normal(9, 23, dtype=dtype), normal(9, 23, dtype=dtype)
    b[0, 0], a[1, 1] = 1, 3
    real = a.real.copy()
    with config.change_flags(**{"cpu.compile": "always"}):
        f = symdnn.function([x, y, r], chain(T, x, y, r), mode=CPU, on_unused_input="ignore")
        assert ops(f).count("FusedComplex") == 1
        assert not {"Mul", "Add", "Real", "Imag", "FusedElemwise"} & {*ops(f)}
        found = f(a, b, real)
    wanted = np.asarray(chain(np, a, b, real))
    assert found.dtype == wanted.dtype
    close = 3e-6 if dtype == "complex64" else 1e-13
    np.testing.assert_allclose(found, wanted, close, close)


@pytest.mark.cpu
def test_rows_columns_strides_and_several_results():
    x, row, column = T.cmatrix("x"), T.cvector("row"), T.fcol("column")
    z = x * row + column
    outputs = [z, T.real(z) * column, abs(z)]
    a, b, c = normal(6, 37), normal(37), normal(6, 1).real.copy()
    wanted = a * b + c
    with config.change_flags(**{"cpu.compile": "always"}):
        f = symdnn.function([x, row, column], outputs, mode=CPU)
        assert ops(f).count("FusedComplex") == 1
        wide = np.zeros((12, 74), "complex64")
        wide[::2, ::2] = a
        for given in (a, wide[::2, ::2], np.asfortranarray(a)):
            for _ in range(3):
                found = f(given, b, c)
            for v, w in zip(found, (wanted, wanted.real * c, abs(wanted)), strict=True):
                np.testing.assert_allclose(v, w, 1e-5, 1e-6)


@pytest.mark.cpu
def test_gradients_and_loops():
    r = T.fvector("r")
    loss = abs(T.exp(1j * r) * (1 + 2j) + r).sum()
    f = symdnn.function([r], T.grad(loss, r), mode=CPU)
    v = new_rng().normal(size=11).astype("float32")

    def value(v):
        return abs(np.exp(1j * v) * (1 + 2j) + v)

    wide = v.astype("float64")
    np.testing.assert_allclose(f(v), (value(wide + 1e-6) - value(wide - 1e-6)) / 2e-6, 1e-4, 1e-4)
    z = T.cvector("z")
    steps, _ = symdnn.scan(lambda s, c: s * s * 0.5 + c, outputs_info=[z], non_sequences=[z],
                           n_steps=5)  # fmt: skip
    g = symdnn.function([z], steps[-1], mode=CPU)
    a = normal(8) * np.complex64(0.5)
    wanted = a
    for _ in range(5):
        wanted = wanted * wanted * np.float32(0.5) + a
    for _ in range(60):
        np.testing.assert_allclose(g(a), wanted, 1e-5, 1e-6)


@pytest.mark.cpu
def test_updates_and_memory_that_is_overwritten():
    s = symdnn.shared(normal(5, 7))
    x = T.cmatrix("x")
    before, a = s.get_value(), normal(5, 7)
    f = symdnn.function([x], [], updates=[(s, s * x + 1)], mode=CPU)
    f(a), f(a)
    np.testing.assert_allclose(s.get_value(), (before * a + 1) * a + 1, 1e-5, 1e-6)


def test_a_power_is_in_the_kernel_of_its_base():
    x = T.cvector("x")
    f = symdnn.function([x], (x * x + 1) ** 2.5, mode=CPU)
    assert ops(f) == ["FusedComplex"]
    a = normal(9)
    np.testing.assert_allclose(f(a), (a * a + 1) ** np.float32(2.5), 1e-4, 1e-5)


def test_a_gpu_has_one_kernel_for_a_gradient():
    x, y = T.cvector("x"), T.fvector("y")
    loss = T.sum(abs(T.log(x * y + 1j)) ** 2)
    f = symdnn.function([x, y], T.grad(loss, [x, y]), mode=symdnn.Mode(target="cuda:sm_90"))
    made = [type(n.op) for n in f.fgraph.apply_nodes if "Host" not in type(n.op).__name__]
    assert made == [FusedComplex]
